"""Folders of transformers as others wrote them: what changes no result is read, and what is left out is named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from tests.formats.models import DATA, TENSORS, assert_same_tensors
from tests.formats.test_convert import converted
from tftrain.config.convert import Place
from tftrain.files.errors import FormatError
from tftrain.formats import torch_file
from tftrain.formats.registry import model_of, open_weights


def changed(tmp_path, fixture, change):
    """A copy of a fixture after `change` of its tensors and its config.json; returns its place."""
    folder = shutil.copytree(DATA / fixture, tmp_path / "model", dirs_exist_ok=True)
    tensors, config = load_file(folder / TENSORS), json.loads((folder / "config.json").read_text())
    save_file(change(tensors, config) or tensors, folder / TENSORS, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return Place("hf", str(folder))


def assert_same(place, fixture):
    """The model at a place is that of a fixture, by configuration and bits; returns what is said of it."""
    weights, expected = open_weights(place), open_weights(Place("hf", str(DATA / fixture)))
    assert (weights.model, weights.shapes) == (expected.model, expected.shapes)
    assert model_of(place)[0] == expected.model
    assert all(np.array_equal(weights.read(name), expected.read(name)) for name in weights.shapes)
    return "\n".join(weights.notes)


def added(**shapes):
    """A change that adds tensors, given by name with __ for a dot."""
    return lambda t, c: {**t, **{name.replace("__", "."): np.ones(shape, "f4") for name, shape in shapes.items()}}


@pytest.mark.parametrize(
    ("fixture", "more"),
    [
        ("hf_bert_tokens", {"bert__pooler__dense__weight": (24, 24), "bert__pooler__dense__bias": (24,)}),
        ("hf_bert_classes", {"cls__predictions__bias": (35,), "cls__predictions__transform__dense__weight": (24, 24)}),
        ("hf_bert_classes", {"cls__predictions__decoder__weight": (35, 24), "cls__seq_relationship__bias": (2,)}),
        ("hf_bert_answers", {"classifier__weight": (2, 24), "classifier__bias": (2,)}),
        ("hf_bert_model", {"classifier__weight": (1, 24)}),
        ("hf_gpt2", {"score__weight": (3, 24), "multiple_choice_head__summary__bias": (1,)}),
        ("hf_modernbert_tokens", {"decoder__bias": (35,)}),
        ("hf_roberta_classes", {"roberta__pooler__dense__weight": (24, 24), "lm_head__bias": (270,)}),
        ("hf_distilbert_tokens", {"pre_classifier__weight": (24, 24), "vocab_projector__bias": (35,)}),
        ("hf_qwen3", {"score__weight": (1, 24), "model__layers__2__self_attn__o_proj__weight": (24, 60)}),
        ("hf_bert", {"bert__encoder__layer__2__output__dense__bias": (24,), "teacher__weight": (2,)}),
    ],
)
def test_tensors_that_the_model_has_no_part_for_are_left_out_and_named(tmp_path, fixture, more):
    said = assert_same(changed(tmp_path, fixture, added(**more)), fixture)
    assert all(name.replace("__", ".") in said for name in more)


@pytest.mark.parametrize(
    ("fixture", "name"),
    [
        ("hf_bert", "bert.encoder.layer.1.attention.self.query.lora_A.weight"),
        ("hf_bert", "bert.embeddings.entity_embeddings.weight"),
        ("hf_llama", "model.layers.0.self_attn.q_proj.weight_scale"),
        ("hf_gpt2", "transformer.h.1.crossattention.c_proj.weight"),
        ("hf_bert_classes", "classifier.lora_B.weight"),
    ],
)
def test_a_tensor_of_a_part_that_the_model_has_is_refused(tmp_path, fixture, name):
    with pytest.raises(FormatError, match=f"{name} is unknown"):
        open_weights(changed(tmp_path, fixture, lambda t, c: {**t, name: np.ones((2, 2), "f4")}))


def with_tensor(name, value):
    return lambda t, c: {**t, name: value}


def renamed(old, new, every=True):
    return lambda t, c: {new + k.removeprefix(old) if every or k.startswith(old) else k: v for k, v in t.items()}


def without(*fields, tensors=None, **values):
    def change(t, c):
        for name in fields:
            c.pop(name, None)
        c.update(values)
        return tensors and tensors(t, c)

    return change


def tied(own, other, wrapper):
    return lambda t, c: {wrapper + (other if name == own else name): value for name, value in t.items()}


TIED = {
    "hf_gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "hf_qwen3": ("model.embed_tokens.weight", "lm_head.weight"),
    "hf_bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "hf_bert_masked_lm": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    "hf_modernbert": ("model.embeddings.tok_embeddings.weight", "decoder.weight"),
    "hf_xlm_roberta": ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    "hf_distilbert": ("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
}
NEUTRAL = {"chunk_size_feed_forward": 64, "torch_dtype": "bfloat16", "pruned_heads": {}, "scale_attn_weights": 0}
LABELS = {"0": "bad", "1": "fine", "2": "good"}
SILENT = [
    # Buffers.
    ("hf_bert_masked_lm", with_tensor("bert.embeddings.token_type_ids", np.zeros((1, 20), "i8"))),
    ("hf_bert", with_tensor("bert.embeddings.position_ids", np.zeros((1, 20), "f4"))),
    ("hf_bert", with_tensor("bert.encoder.layer.0.attention.self.step", np.zeros((), "i8"))),
    ("hf_gpt2", with_tensor("transformer.h.0.attn.bias", np.ones((1, 1, 20, 20), "u1"))),
    ("hf_gpt2", with_tensor("transformer.h.1.attn.masked_bias", np.ones((), "f4"))),
    ("hf_llama", with_tensor("model.layers.1.self_attn.rotary_emb.inv_freq", np.ones(3, "f4"))),
    ("hf_modernbert", with_tensor("model.rotary_emb.sliding_attention_inv_freq", np.ones(3, "f4"))),
    # Names that wrappers put before or leave out.
    *(("hf_bert", renamed("", "module.")), ("hf_bert_classes", renamed("", "_orig_mod.module."))),
    *(("hf_bert_classes", renamed("", "model.")), ("hf_bert_tokens", renamed("bert.", "encoder.", False))),
    *(("hf_bert_model", renamed("", "bert.")), ("hf_bert_model", renamed("", "0.auto_model."))),
    *(("hf_gpt2", renamed("transformer.", "")), ("hf_gpt2", renamed("", "base."))),
    *(("hf_llama", renamed("", "model.")), ("hf_qwen2", renamed("", "policy.module."))),
    ("hf_modernbert_classes", renamed("model.", "", False)),
    *(("hf_roberta_classes", renamed("roberta.", "", False)), ("hf_distilbert_model", renamed("", "distilbert."))),
    *(("hf_roberta_model", renamed("", "0.auto_model.")), ("hf_distilbert_classes", renamed("", "module."))),
    ("hf_modernbert", lambda t, c: {k.replace("layers.", "layers._orig_mod."): v for k, v in t.items()}),
    # A tied tensor under its other name alone.
    *((fixture, tied(*names, wrapper)) for fixture, names in TIED.items() for wrapper in ("", "module.")),
    # Fields that change no result.
    ("hf_bert", without(**NEUTRAL)),
    ("hf_bert_classes", without(tie_word_embeddings=False, id2label=LABELS)),
    ("hf_bert_model", without(tie_word_embeddings=False, num_labels="two")),
    ("hf_gpt2", without(is_decoder=True, position_embedding_type=None)),
    ("hf_llama", without(pretraining_tp=2, hidden_act="swish", is_decoder=True, use_sliding_window=False)),
    ("hf_qwen2", without(use_sliding_window=True, sliding_window=4096, attention_bias=True, mlp_bias=None)),
    ("hf_modernbert", without(mlp_dropout=0.1, tie_word_embeddings=None)),
]


@pytest.mark.parametrize(("fixture", "change"), SILENT)
def test_what_changes_no_result_is_read_without_a_word(tmp_path, fixture, change):
    assert assert_same(changed(tmp_path, fixture, change), fixture) == ""


def test_two_models_in_a_file_are_refused(tmp_path):
    twice = lambda t, c: {prefix + k: v for k, v in t.items() for prefix in ("query.", "doc.")}  # noqa: E731
    place = changed(tmp_path, "hf_bert_model", twice)
    with pytest.raises(FormatError, match=r"doc\., query\. are the names of several models"):
        open_weights(place)


@pytest.mark.parametrize(
    "fixture",
    [
        *("hf_bert", "hf_megatron_bert", "hf_gpt2", "hf_llama", "hf_qwen2", "hf_qwen3", "hf_modernbert"),
        *("hf_bert_model", "hf_roberta", "hf_distilbert", "hf_distilbert_model"),
    ],
)
@pytest.mark.parametrize("fields", [("model_type",), ("model_type", "architectures")])
def test_a_missing_model_type_follows_from_the_class_or_the_tensors(tmp_path, fixture, fields):
    said = assert_same(changed(tmp_path, fixture, without(*fields)), fixture)
    kind = json.loads((DATA / fixture / "config.json").read_text())["model_type"]
    assert said.endswith(f"has no model_type; by the tensors and their names it is {kind}")


@pytest.mark.parametrize("change", [{"architectures": ["MistralForCausalLM"]}, {"tensors": renamed("model.", "m.a.")}])
def test_a_model_type_that_nothing_says_is_refused(tmp_path, change):
    place = changed(tmp_path, "hf_llama", without("model_type", "architectures", **change))
    with pytest.raises(FormatError, match="model_type is None; expected one of bert"):
        open_weights(place)


@pytest.mark.parametrize(
    "fixture",
    [f"hf_{name}_{kind}" for name in ("bert", "roberta", "distilbert") for kind in ("classes", "tokens", "answers")]
    + ["hf_modernbert_classes"],
)
@pytest.mark.parametrize("fields", [("architectures",), ("model_type", "architectures")])
def test_a_missing_class_follows_from_the_output_head(tmp_path, fixture, fields):
    assert "has no architectures; by the tensors" in assert_same(changed(tmp_path, fixture, without(*fields)), fixture)


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {}}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": None, "num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"0": "no", "1": "yes"}, "num_labels": 3}, ("no", "yes", "LABEL_2")),
        ({"id2label": {"2": "c", "0": "a", "1": "b"}}, ("a", "b", "c")),
        ({"label2id": {"c": 2, "b": 1, "a": 0}}, ("a", "b", "c")),
        ({"label2id": {"c": "2", "b": "1", "a": "0"}, "id2label": {"0": "A"}}, ("A", "b", "c")),
        ({"id2label": {"0": 1, "1": 2.5, "2": None}}, ("1", "2.5", "LABEL_2")),
        ({"id2label": {"0": "x", "1": "a", "2": "a"}}, ("x", "a", "a (2)")),
    ],
    ids=str,
)
def test_classes_without_whole_names_have_some(tmp_path, given, labels):
    weights = open_weights(changed(tmp_path, "hf_bert_classes", without("id2label", "label2id", **given)))
    assert weights.model.labels == labels
    assert model_of(Place("hf", weights.path))[0].labels == labels
    assert bool(weights.notes) == (
        labels[-1] in ("a (2)",) or (labels[-1] == "LABEL_2" and bool(given.get("id2label")))
    )


def test_a_bert_may_have_the_tokenizer_of_xlm_r(tmp_path):
    """multilingual-e5-small and paraphrase-multilingual-MiniLM are such models."""
    source, rows = DATA / "hf_xlm_roberta", np.ones((63, 24), np.float32)
    change = without(vocab_size=63, tensors=lambda t, c: {**t, "embeddings.word_embeddings.weight": rows})
    folder = Path(changed(tmp_path, "hf_bert_model", change).path)
    (folder / "vocab.txt").unlink()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / file, folder)
    model, tokenizer = model_of(Place("hf", str(folder)))
    assert (model.model_family, model.first_row, tokenizer.vocabulary.roles.padding) == ("bert", 0, 1)
    theirs = Tokenizer.from_file(str(source / "tokenizer.json")).encode("the é abc", add_special_tokens=False)
    assert tokenizer.build()(["the é abc"])[0].tolist() == theirs.ids


@pytest.mark.parametrize(
    ("fixture", "name", "nearest", "base"),
    [
        ("hf_bert_classes", "BertForMultipleChoice", "BertForQuestionAnswering", "BertModel"),
        ("hf_roberta_tokens", "TFRobertaForMultipleChoice", "RobertaForQuestionAnswering", "RobertaModel"),
        ("hf_distilbert_answers", "DistilBertForSpans", "DistilBertForMaskedLM", "DistilBertModel"),
    ],
)
def test_an_output_head_of_an_unknown_class_is_refused(tmp_path, fixture, name, nearest, base):
    with pytest.raises(FormatError, match=f"names {name}, .* nearest to {name} is {nearest}; write {base} there"):
        open_weights(changed(tmp_path, fixture, without(architectures=[name])))
    assert "left out" in "".join(open_weights(changed(tmp_path, fixture, without(architectures=[base]))).notes)


@pytest.mark.parametrize("given", [{"1": "a", "2": "b", "3": "c"}, ["a", "b", "c"], {"a": 0}, {"0": ["a"]}], ids=str)
def test_classes_that_contradict_the_head_are_refused_by_name(tmp_path, given):
    with pytest.raises(FormatError, match="id2label"):
        open_weights(changed(tmp_path, "hf_bert_classes", without("label2id", id2label=given)))


def test_a_decoder_that_does_not_say_whether_it_is_tied_follows_its_tensors(tmp_path):
    place = changed(tmp_path, "hf_qwen3", without("tie_word_embeddings"))
    assert_same(place, "hf_qwen3")
    rewards = changed(tmp_path, "hf_qwen3", without("tie_word_embeddings", tensors=added(score__weight=(1, 24))))
    with pytest.raises(FormatError, match=r"lm_head\.weight is missing"):
        open_weights(rewards)


@pytest.mark.parametrize(("files", "wrapped"), [(1, False), (2, False), (2, True)])
def test_pickles_in_one_or_several_files_are_read_when_allowed(capsys, tmp_path, files, wrapped):
    tensors = load_file(DATA / "hf_bert/model.safetensors")
    folder = shutil.copytree(DATA / "hf_bert", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    where = {}
    for number in range(files):
        names = list(tensors)[number::files]
        file = "pytorch_model.bin" if files == 1 else f"pytorch_model-0000{number + 1}-of-00002.bin"
        content = {name: torch_file.Placeholder(name, tensors[name].shape) for name in names}
        content = {"epoch": 1, "state_dict": content} if wrapped else content
        torch_file.write(folder / file, content, [(name, tensors[name]) for name in names])
        where |= dict.fromkeys(names, file)
    if files > 1:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    advice = f"python -m tftrain.convert --from=hf:{folder} --to=hf:NEW_FOLDER --allow_pickle"
    with pytest.raises(FormatError, match=advice):
        open_weights(Place("hf", str(folder)))
    converted(capsys, f"hf:{folder}", f"hf:{tmp_path / 'out'}", "--allow_pickle")
    assert_same_tensors(tmp_path / "out", DATA / "hf_bert")


@pytest.mark.parametrize("has_config", [True, False])
def test_an_adapter_alone_is_named(tmp_path, has_config):
    folder = shutil.copytree(DATA / "hf_bert", tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    if not has_config:
        (folder / "config.json").rename(folder / "adapter_config.json")
    with pytest.raises(FormatError, match=r"adapter_model\.safetensors has only an adapter; expected the whole model"):
        open_weights(Place("hf", str(folder)))
