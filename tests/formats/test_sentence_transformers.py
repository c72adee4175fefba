"""Folders of sentence-transformers: what they say is read, and what is written comes back."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.formats.models import DATA, TENSORS, assert_same_tensors
from tests.kit.programs import done
from tftrain.config.convert import Place
from tftrain.config.model import VECTOR_FLAGS
from tftrain.files.errors import FormatError
from tftrain.formats import registry
from tftrain.formats.weights import with_initial_heads

FILES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json")
DENSE = {"embedding_dense": 10, "embedding_activation": "identity"}
QUERY = {"text_prompt": "query: ", "text_pair_prompt": "\u00e4 text: ", "pool_prompt": False}
OLD = {"word_embedding_dimension": 24, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def written(folder, name, **flags):
    """Writes a fixture as a model for vectors; its dense layer is drawn."""
    weights = registry.open_weights(Place("hf", str(DATA / name)))
    weights.model = dataclasses.replace(weights.model, task="embedding", labels=(), **flags)
    weights.max_seq_length = 12
    folder.mkdir()
    left_out = registry.write_weights(Place("hf", str(folder)), with_initial_heads(weights, ("projection",), 1))
    assert all(each.startswith(("pooler", "masked_lm", "next_sentence", "output")) for each in left_out)
    return folder


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("hf_bert", {}),
        ("hf_bert_model", {"pooling": "cls", **DENSE, **QUERY}),
        ("hf_roberta", {"pooling": "max", "normalize_embeddings": False}),
        ("hf_xlm_roberta", {}),
        ("hf_modernbert", {"embedding_dense": 3}),
        ("hf_gpt2", {"embedding_dense": 7, **QUERY}),
        ("hf_qwen3", {"pooling": "last"}),
        ("hf_llama", {"pooling": "mean"}),
    ],
)
def test_what_is_written_comes_back(tmp_path, name, flags):
    first = written(tmp_path / "first", name, **flags)
    weights = registry.open_weights(Place("hf", str(first)))
    model = registry.model_of(Place("hf", str(first)))[0]
    assert weights.model == model
    assert (model.task, weights.max_seq_length, weights.notes) == ("embedding", 12, ())
    resolved = {"pooling": model.text_pooling} | flags
    assert {each: getattr(model, each) for each in resolved} == resolved
    done("convert", f"--from=hf:{first} --to=tftrain:{tmp_path / 'own'}")
    done("convert", f"--from=tftrain:{tmp_path / 'own'} --to=hf:{tmp_path / 'again'}")
    assert_same_tensors(tmp_path / "again", first)
    places = sorted(each.relative_to(first) for each in first.rglob("*") if each.is_file())
    assert places == sorted(each.relative_to(tmp_path / "again") for each in (tmp_path / "again").rglob("*.*"))
    for place in places:
        assert (first / place).read_bytes() == (tmp_path / "again" / place).read_bytes(), place
    if "embedding_dense" in flags:
        linear = load_file(first / "2_Dense/model.safetensors")
        assert linear["linear.weight"].shape == (flags["embedding_dense"], model.hidden_size)
        np.testing.assert_array_equal(linear["linear.weight"].T, weights.read("projection/kernel"))


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def described(folder):
    """Returns the flags that differ from the defaults, the most tokens, and the notes of a folder."""
    weights = registry.open_weights(Place("hf", str(folder)))
    plain = type(weights.model)()
    flags = {name: value for name in VECTOR_FLAGS if (value := getattr(weights.model, name)) != getattr(plain, name)}
    return weights.model.task, flags, weights.max_seq_length, [note.rpartition(": ")[2] for note in weights.notes]


POOLINGS = [
    ({**OLD, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, {"pooling": "cls"}),
    ({"pooling_mode": "lasttoken", "embedding_dimension": 24}, {"pooling": "last"}),
    ({"pooling_mode": ["max"], "include_prompt": False}, {"pooling": "max", "pool_prompt": False}),
    ({"word_embedding_dimension": 24}, {"pooling": "mean"}),
    ({**OLD, "pooling_mode_max_tokens": True}, "its pooling is mean and max, which this project lacks"),
    ({"pooling_mode": "weightedmean"}, "its pooling is weightedmean, which this project lacks"),
]


@pytest.mark.parametrize(("content", "expected"), POOLINGS, ids=str)
def test_each_form_of_a_pooling_is_read_or_named(tmp_path, content, expected):
    folder = written(tmp_path / "model", "hf_bert_model")
    (folder / "1_Pooling/config.json").write_text(json.dumps(content))
    task, flags, length, notes = described(folder)
    if isinstance(expected, dict):
        assert (task, flags, length, notes) == ("embedding", expected, 12, [])
    else:
        assert (task, flags, length) == ("pretraining", {}, None)
        assert notes == [f"{expected}; so this is the model without its vectors"]


LACKING = [
    (
        FILES[0],
        lambda modules: [*modules, {"path": "", "type": "a.models.LayerNorm"}],
        "it has Transformer, Pooling, Dense, Normalize, LayerNorm, which this project lacks",
    ),
    (FILES[0], lambda modules: [*modules[:2], modules[3], modules[2]], "it has Transformer, Pooling, Normalize, Dense"),
    *(
        (
            "2_Dense/config.json",
            lambda fields, name=name, value=value: {**fields, name: value},
            f"{name} of its dense layer is",
        )
        for name, value in (
            ("activation_function", "torch.nn.modules.activation.ReLU"),
            ("use_residual", True),
            ("bias", False),
            ("module_input_name", "token_embeddings"),
        )
    ),
]


@pytest.mark.parametrize(("file", "change", "said"), LACKING, ids=[said for *_, said in LACKING])
def test_other_modules_and_dense_layers_are_named(tmp_path, file, change, said):
    path = written(tmp_path / "model", "hf_bert_model", **DENSE) / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    task, flags, _, (note,) = described(tmp_path / "model")
    assert (task, flags) == ("pretraining", {})
    assert note.startswith(said)


def test_a_transformer_in_a_folder_of_its_own_is_read(tmp_path):
    whole = written(tmp_path / "whole", "hf_bert_model", **DENSE)
    folder = tmp_path / "model"
    shutil.copytree(whole, folder / "0_Transformer")
    for name in ("1_Pooling", "2_Dense", "3_Normalize", *FILES[:2]):
        shutil.move(folder / "0_Transformer" / name, folder / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "0_Transformer/sentence_bert_config.json").rename(folder / "0_Transformer/sentence_xlnet_config.json")
    assert described(folder) == described(whole)
    registry.model_of(Place("hf", str(folder)))


def test_prompts_similarity_and_length_are_those_of_the_files(tmp_path):
    folder = written(tmp_path / "model", "hf_bert_model")
    prompts = {"query": "q: ", "passage": "p: ", "document": "", "sts": "s: "}
    edit(folder / FILES[1], prompts=prompts, similarity_fn_name="euclidean", truncate_dim=8)
    edit(folder / FILES[2], max_seq_length=4096)
    path = folder / FILES[0]
    path.write_text(json.dumps(json.loads(path.read_text())[:2]))
    flags = {"pooling": "mean", "normalize_embeddings": False, "text_prompt": "q: ", "text_pair_prompt": "p: "}
    notes = ["its similarity is euclidean; vectors are compared by products here"]
    notes += ["its truncate_dim is 8; vectors have all their numbers here", "the prompts sts are left out"]
    assert described(folder) == ("embedding", flags, 20, notes)
    edit(folder / FILES[1], prompts={"query": "q", "document": ""}, default_prompt_name="query")
    assert described(folder)[1]["text_prompt"] == "q"
    assert "text_pair_prompt" not in described(folder)[1]
    edit(
        folder / FILES[1], prompts={"sts": "s: "}, default_prompt_name="sts", similarity_fn_name=None, truncate_dim=None
    )
    flags = {"pooling": "mean", "text_prompt": "s: ", "text_pair_prompt": "s: "}
    assert described(folder)[1:] == (flags, 20, ["its vectors get the length 1 here, which changes no cosine"])


def test_a_file_that_is_missing_is_named(tmp_path):
    folder = written(tmp_path / "model", "hf_bert_model")
    (folder / FILES[3]).unlink()
    with pytest.raises(FormatError, match=r"1_Pooling/config\.json: No such file"):
        registry.model_of(Place("hf", str(folder)))


def test_a_tokenizer_that_keeps_the_case_is_refused_where_texts_are_lower_cased(tmp_path):
    folder = written(tmp_path / "model", "hf_bert_model")
    place = Place("hf", str(folder))
    edit(folder / FILES[2], do_lower_case=True)
    assert registry.model_of(place)[1].lower_case
    edit(folder / "tokenizer_config.json", do_lower_case=False, lower_case=False)
    with pytest.raises(FormatError, match="do_lower_case of sentence-transformers is true; expected false"):
        registry.model_of(place)


def test_a_damaged_dense_layer_is_named(tmp_path):
    folder = written(tmp_path / "model", "hf_bert_model", **DENSE)
    place = Place("hf", str(folder))
    save_file({"linear.weight": np.zeros([9, 24], np.float32)}, folder / "2_Dense" / TENSORS)
    with pytest.raises(FormatError, match=r"linear\.(bias|weight) is"):
        registry.open_weights(place)
    edit(folder / "2_Dense/config.json", out_features=-3)
    with pytest.raises(FormatError, match="out_features is -3: Expected `int` >= 1"):
        registry.model_of(place)
    edit(folder / "2_Dense/config.json", out_features="many")
    with pytest.raises(FormatError, match="out_features is 'many'"):
        registry.model_of(place)
