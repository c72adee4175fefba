"""Conversions there and back keep every bit, and what can't be converted is refused in a line."""

import dataclasses
import itertools
import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from tests.checkpoint import states
from tests.formats.models import DATA, TENSORS, assert_same_tensors, edited
from tests.kit import programs
from tftrain import convert
from tftrain.checkpoint import folder
from tftrain.config.convert import Place
from tftrain.config.model import ModelConfig
from tftrain.families import FAMILIES
from tftrain.files.errors import FormatError
from tftrain.formats import hugging_face_config, registry, tf1, tf_checkpoint
from tftrain.formats.hugging_face_names import TYPES, type_of
from tftrain.formats.registry import open_weights
from tftrain.formats.weights import HEADS, Weights, with_initial_heads


def run(capsys, *arguments):
    """Runs the program; returns its exit code and what it said."""
    try:
        code = convert.main(["convert", *map(str, arguments)])
    except SystemExit as error:
        code = error.code
    return code, "".join(capsys.readouterr())


def converted(capsys, source, target, *arguments):
    code, text = run(capsys, f"--from={source}", f"--to={target}", *arguments)
    assert code == 0, text
    return text


OF_TRANSFORMERS = (
    *("hf_bert", "hf_bert_masked_lm", "hf_bert_model", "hf_megatron_bert", "hf_gpt2", "hf_llama", "hf_qwen2"),
    *("hf_qwen3", "hf_modernbert", "hf_roberta", "hf_roberta_model", "hf_xlm_roberta", "hf_camembert"),
    *("hf_distilbert", "hf_distilbert_model"),
)
FINE_TUNED = ("hf_bert_classes", "hf_bert_tokens", "hf_bert_answers")
FINE_TUNED += ("hf_modernbert_classes", "hf_modernbert_mean", "hf_modernbert_tokens", "hf_modernbert_answers")
FINE_TUNED += ("hf_roberta_classes", "hf_roberta_tokens", "hf_roberta_answers", "hf_xlm_roberta_classes")
FINE_TUNED += ("hf_camembert_tokens", "hf_distilbert_classes", "hf_distilbert_tokens", "hf_distilbert_answers")


@pytest.mark.parametrize("name", [*OF_TRANSFORMERS, *FINE_TUNED])
def test_a_model_of_transformers_comes_back_with_the_same_bits(capsys, tmp_path, name):
    converted(capsys, f"hf:{DATA / name}", f"tftrain:{tmp_path / 'own'}")
    converted(capsys, f"tftrain:{tmp_path / 'own'}", f"hf:{tmp_path / 'back'}")
    assert_same_tensors(tmp_path / "back", DATA / name)
    first, last = (json.loads((folder / "config.json").read_text()) for folder in (DATA / name, tmp_path / "back"))
    assert hugging_face_config.model_config(last, "back") == hugging_face_config.model_config(first, "first")
    kind, ids = first["model_type"], {key for key in first if key.endswith("_token_id")}
    same = (first.keys() & last.keys()) - {"hidden_act", "bos_token_id", "eos_token_id"}
    same |= ids if kind not in ("gpt2", "llama", "qwen2", "qwen3") else set()
    assert {key: first.get(key) for key in same} == {key: last.get(key) for key in same}
    left_out = first.keys() - last.keys() - ids - {"transformers_version"}
    left_out -= {"layer_types"} if kind.startswith("qwen") else set()
    assert {key: first[key] for key in left_out} == {key: LIBRARY[kind].get(key) for key in left_out}


def test_a_large_model_is_several_files_with_an_index(capsys, tmp_path):
    converted(capsys, f"hf:{DATA / 'hf_llama'}", f"hf:{tmp_path / 'parts'}", "--max_shard_gb=1e-5")
    index = json.loads((tmp_path / "parts/model.safetensors.index.json").read_text())
    before, files = load_file(DATA / "hf_llama/model.safetensors"), sorted(set(index["weight_map"].values()))
    assert len(files) > 5
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in before.values())
    for file in files:
        tensors = load_file(tmp_path / "parts" / file)
        assert sum(value.nbytes for value in tensors.values()) <= 10_000 or len(tensors) == 1
        assert all(index["weight_map"][name] == file for name in tensors)
    assert before.keys() == index["weight_map"].keys()
    converted(capsys, f"hf:{tmp_path / 'parts'}", f"hf:{tmp_path / 'whole'}")
    assert_same_tensors(tmp_path / "whole", DATA / "hf_llama")


@pytest.mark.parametrize("strips", [True, False])
def test_a_tokenizer_keeps_whether_it_strips_accents(capsys, tmp_path, strips):
    source = edited(tmp_path / "source", "hf_bert", {"strip_accents": strips}, file="tokenizer_config.json")
    converted(capsys, f"hf:{source}", f"tftrain:{tmp_path / 'own'}")
    converted(capsys, f"tftrain:{tmp_path / 'own'}", f"hf:{tmp_path / 'back'}")
    settings = json.loads((tmp_path / "back/tokenizer_config.json").read_text())
    assert (settings["do_lower_case"], settings["strip_accents"]) == (True, strips)


def test_a_normalization_that_other_libraries_lack_is_said(capsys, tmp_path):
    shutil.copytree(DATA / "hf_bert", tmp_path / "model")
    settings = {"tokenizer_type": "wordpiece", "lower_case": True, "normalization": "nfkc"}
    (tmp_path / "model/tokenizer_config.json").write_text(json.dumps(settings))
    said = "no tokenizer with this normalization (nfkc)"
    assert said in converted(capsys, f"hf:{tmp_path / 'model'}", f"hf:{tmp_path / 'again'}")
    assert said not in converted(capsys, f"hf:{tmp_path / 'model'}", f"tftrain:{tmp_path / 'own'}")
    assert said not in converted(capsys, f"hf:{DATA / 'hf_bert'}", f"hf:{tmp_path / 'bert'}")


OF_TENSORFLOW = [(name, name) for name in ("tf1", "tf_models", "tf_models_encoder", "nvidia", "nvidia_encoder")]


# `tests/model/test_tf_models_parity.py` has a model that the library restores.
@pytest.mark.parametrize(("name", "written"), [*OF_TENSORFLOW, ("tf_models", "tf_models_encoder")])
def test_a_checkpoint_of_tensorflow_comes_back_with_the_same_bits_and_names(capsys, tmp_path, name, written):
    kind, more = name.removesuffix("_encoder"), [] if name == written else ["--architecture=BertEncoderV2"]
    converted(capsys, f"{kind}:{DATA / name}", f"tftrain:{tmp_path / 'own'}")
    converted(capsys, f"tftrain:{tmp_path / 'own'}", f"{kind}:{tmp_path / 'back'}", *more)
    assert (tmp_path / "back/vocab.txt").read_bytes() == (DATA / name / "vocab.txt").read_bytes()
    assert open_weights(Place("tftrain", str(tmp_path / "own"))).tokenizer.lower_case
    before, after = (
        tf.train.load_checkpoint(str(folder / "bert_model.ckpt")) for folder in (DATA / written, tmp_path / "back")
    )
    expected = {shared(each): each for each in before.get_variable_to_shape_map() if not each.startswith("_CHECK")}
    found = {each for each in after.get_variable_to_shape_map() if not each.startswith("_CHECK")}
    assert found == set(expected)
    for each in found:
        if name != "tf_models" or "/_pooler_layer/" not in each:  # which its pre-training model does not use
            np.testing.assert_array_equal(after.get_tensor(each), before.get_tensor(expected[each]), err_msg=each)


def shared(name):
    """The name that we give to the token embedding, which tf-models saves under that of the output layer."""
    return name.replace("model/masked_lm/embedding_table", "model/encoder_network/_embedding_layer/embeddings")


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("nvidia", [], "NVIDIA's pre-training has no GeLU in its masked-LM output head"),
        ("hf_bert", ["--architecture=BertModel"], "not written, as hf has no such tensors: masked_lm/transform/kernel"),
    ],
)
def test_what_does_not_come_along_is_said(capsys, tmp_path, source, target, said):
    kind = source.partition("_")[0]
    assert said in converted(capsys, f"{kind}:{DATA / source}", f"hf:{tmp_path / 'model'}", *target)


def test_missing_heads_get_initial_values_only_when_asked(capsys, tmp_path):
    source = DATA / "hf_bert_model"
    converted(capsys, f"hf:{source}", f"tftrain:{tmp_path / 'all'}", "--init_missing")
    weights = open_weights(Place("tftrain", str(tmp_path / "all")))
    assert weights.missing == ()
    kernel = weights.read("next_sentence/kernel")
    assert kernel.std() == pytest.approx(weights.model.initializer_range, rel=0.4)
    assert np.abs(kernel).max() <= 2 * weights.model.initializer_range
    assert not weights.read("masked_lm/bias").any()
    assert (weights.read("masked_lm/norm/gamma") == 1).all()
    converted(capsys, f"hf:{source}", f"tftrain:{tmp_path / 'some'}")
    assert open_weights(Place("tftrain", str(tmp_path / "some"))).missing == ("masked_lm", "next_sentence")


def test_half_precision_widens_without_a_change(capsys, tmp_path):
    halves = lambda tensors: {name: value.astype(np.float16) for name, value in tensors.items()}  # noqa: E731
    source = edited(tmp_path / "half", "hf_bert", tensors=halves)
    converted(capsys, f"hf:{source}", f"hf:{tmp_path / 'wide'}")
    assert_same_tensors(tmp_path / "wide", source)
    assert {value.dtype for value in load_file(tmp_path / "wide" / TENSORS).values()} == {np.dtype(np.float32)}


def model_of(fixture, *left_out, **fields):
    config = json.loads((DATA / fixture / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in left_out} | fields
    return hugging_face_config.model_config(config, "config.json")


def test_positions_are_read_under_their_names_before_transformers_5():
    scaling = json.loads((DATA / "hf_llama/config.json").read_text())["rope_parameters"]
    old = {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    found = model_of("hf_llama", "rope_parameters", **old)
    assert found == model_of("hf_llama")
    assert (found.rope_theta, found.rope_scaling) == (100.0, "llama3:8,1,4,16")
    old = {"global_rope_theta": 1e5, "local_rope_theta": 500.0, "global_attn_every_n_layers": 2}
    found = model_of("hf_modernbert", "rope_parameters", "layer_types", **old)
    assert (found.rope_theta, found.local_rope_theta, found.global_attn_every) == (1e5, 500.0, 2)


def test_a_pretrained_model_says_how_its_classifier_will_pool():
    found = model_of("hf_modernbert", classifier_pooling="mean")
    assert (found.task, found.classifier_pooling) == ("pretraining", "mean")
    with pytest.raises(FormatError, match="classifier_pooling is 'max'; expected 'cls' or 'mean'"):
        model_of("hf_modernbert", classifier_pooling="max")


def test_a_modernbert_without_local_layers_has_only_global_ones_in_transformers():
    sizes = {"vocab_size": 40, "num_hidden_layers": 4, "hidden_size": 24, "num_attention_heads": 2}
    model = ModelConfig(model_family="modernbert", **sizes).with_family_defaults(())
    model = dataclasses.replace(model, local_attention=0)
    config = hugging_face_config.config_json(model, "ModernBertForMaskedLM")
    assert config["layer_types"] == ["full_attention"] * 4
    assert (config["global_attn_every_n_layers"], config["local_attention"]) == (1, 128)
    assert hugging_face_config.model_config(config, "config.json").local_attention == 0


def with_tensor(name, value=None):
    """A change of a folder that sets a tensor, or removes it."""

    def change(folder):
        tensors = load_file(folder / TENSORS)
        tensors.pop(name, None)
        save_file(tensors | ({} if value is None else {name: value}), folder / TENSORS)

    return change


TIED = "cls.predictions.decoder.weight"
KEY, LORA = (f"bert.encoder.layer.1.attention.self.key.{leaf}" for leaf in ("weight", "lora_A.weight"))
YARN, NUMBER = {"rope_type": "yarn", "factor": 4.0}, "expected a number above 1"
# By fixture: what is changed in its folder or in its config.json, and the line that refuses it.
REFUSED = {
    "hf_bert": [
        (lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
        (lambda folder: (folder / TENSORS).unlink(), f"{TENSORS}: no such file"),
        (lambda folder: (folder / TENSORS).rename(folder / "pytorch_model.bin"), "which can run any code"),
        (lambda folder: os.truncate(folder / TENSORS, 9_000), "not a safetensors file"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
        (with_tensor(KEY), f"{KEY} is missing"),
        (with_tensor(LORA, np.zeros((2, 24), np.float32)), f"{LORA} is unknown"),
        (with_tensor(KEY, np.zeros((24, 23), np.float32)), f"{KEY} is [24, 23], expected [24, 24]"),
        (with_tensor(KEY, np.zeros((24, 24), np.int64)), f"{KEY} is int64"),
        (with_tensor(TIED, np.zeros((35, 24), np.float32)), f"{TIED} differs from"),
        ({"model_type": "esm"}, "expected one of bert, megatron-bert, gpt2, llama, qwen2, qwen3, modernbert"),
        (
            {"model_type": "xlm-roberta-xl", "architectures": ["XLMRobertaXLForMaskedLM"]},
            "the known class nearest to XLMRobertaXLForMaskedLM is XLMRobertaForMaskedLM",
        ),
        ({"model_type": ["bert"]}, "model_type is ['bert']; expected one of bert"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"hidden_act": {}}, "hidden_act is {}; expected one of"),
        ({"position_embedding_type": "relative_key"}, "this project has only 'absolute'"),
        ({"hidden_size": "many"}, "hidden_size is 'many'; expected a whole number"),
        ({"num_attention_heads": 7}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None; expected a whole number"),
    ],
    "hf_llama": [
        ({"rope_parameters": YARN}, "rope_type is 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type is 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is None"),
        ({"rope_parameters": None, "rope_theta": "large"}, f"rope_theta is 'large'; {NUMBER}"),
        ({"num_key_value_heads": 4}, "num_attention_heads=6 is not a multiple of num_key_value_heads=4"),
        ({"head_dim": 8}, "model.layers.0.self_attn.q_proj.weight is [24, 24], expected [48, 24]"),
        ({"mlp_bias": True}, "attention_bias and mlp_bias differ"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this project has only 'silu'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; expected true or false"),
        ({"tie_word_embeddings": True}, "lm_head.weight differs from model.embed_tokens.weight"),
    ],
    "hf_modernbert": [
        ({"norm_bias": True}, "norm_bias is True; this project has only False"),
        ({"classifier_activation": "silu"}, "classifier_activation is 'silu'"),
        ({"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 3}, "full_attention every 1 layers"),
        ({"rope_parameters": {"full_attention": YARN}}, "this project has only rope_type 'default'"),
        ({"rope_parameters": None, "local_rope_theta": 0}, f"rope_theta is 0; {NUMBER}"),
    ],
}


@pytest.mark.parametrize(
    ("fixture", "change", "message"),
    [pytest.param(name, *each, id=each[1]) for name, changes in REFUSED.items() for each in changes],
)
def test_a_model_is_refused_in_a_line_and_nothing_is_left(capsys, tmp_path, fixture, change, message):
    folder = edited(tmp_path / "model", fixture, change if isinstance(change, dict) else None)
    if not isinstance(change, dict):
        change(folder)
    code, text = run(capsys, f"--from=hf:{folder}", f"--to=tftrain:{tmp_path / 'out'}")
    assert code == (2 if "o such file" in message else 1), text
    assert message in text
    assert len([line for line in text.splitlines() if "rror" in line or message in line]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


LIBRARY = json.loads((DATA / "transformers_defaults.json").read_text())


def test_a_family_that_transformers_does_not_have_is_refused_by_name(monkeypatch):
    assert type_of(ModelConfig(model_family="gpt")).name == "gpt2"
    monkeypatch.setitem(FAMILIES, "gpt", FAMILIES["gpt"]._replace(types=()))
    with pytest.raises(FormatError, match="--model_family=gpt: transformers has no such model"):
        type_of(ModelConfig(model_family="gpt"))


@pytest.mark.parametrize("left_out", sorted(TYPES["bert"][1].fields))
@pytest.mark.parametrize("kind", LIBRARY)
def test_a_field_that_is_left_out_has_the_default_of_its_library(kind, left_out):
    whole = hugging_face_config.model_config(LIBRARY[kind], "config.json")
    name, _ = TYPES[kind][1].fields.get(left_out, (None, None))
    some = {key: value for key, value in LIBRARY[kind].items() if key != name}
    assert hugging_face_config.model_config(some, "config.json") == whole
    assert hugging_face_config.model_config({"model_type": kind}, "config.json") == whole


def test_the_original_bert_has_defaults_of_its_own():
    model = tf1.model_config({"vocab_size": 100}, "bert_config.json")
    assert (model.type_vocab_size, model.gelu_form, model.layer_norm_epsilon) == (16, "tanh", 1e-12)


# tests/bad_inputs has the other flags.
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "--from: expected FORMAT:PATH"),
        (["--from=onnx:x"], "--from=onnx:x: expected FORMAT:PATH"),
        (["--from=hf:/nowhere"], "--from=hf:/nowhere: no such folder"),
    ],
)
def test_a_wrong_source_names_the_flag(capsys, source, message):
    code, text = run(capsys, *source, "--to=hf:x")
    assert (code, message in text) == (2, True), text


def test_a_large_model_is_never_in_memory(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tf_checkpoint, "FILE_BYTES", 2**22)
    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 4096}
    model = ModelConfig(vocab_size=4096, max_position_embeddings=64, **sizes)
    largest = 4 * 4096 * 256
    folders = [tmp_path / str(number) for number in range(4)]
    folders[0].mkdir()
    registry.write_weights(Place("hf", str(folders[0])), with_initial_heads(Empty(model), HEADS, 1))
    for source, target in itertools.pairwise(zip(("hf", "tftrain", "tf1", "hf"), folders, strict=True)):
        tracemalloc.start()
        try:
            converted(capsys, f"{source[0]}:{source[1]}", f"{target[0]}:{target[1]}")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        size = sum(path.stat().st_size for path in target[1].iterdir())
        assert size > 12 * largest
        assert peak < 3 * largest + 2**20, (source, target)


class Empty(Weights):
    """A model of which nothing is there."""

    path, shapes = "nowhere", {}

    def __init__(self, model):
        self.model = model

    def read(self, name):
        raise AssertionError(name)


def test_norms_that_the_family_of_a_library_lacks_are_refused():
    with pytest.raises(FormatError, match="norm_position is post, the gpt of transformers has only pre"):
        hugging_face_config.require(ModelConfig(model_family="gpt", norm_position="post"), "transformers", ("pre",))


@pytest.mark.slow
def test_the_newest_checkpoints_of_a_run_have_a_mean(capsys, tmp_path):
    sizes = "--num_hidden_layers=1 --hidden_size=16 --num_attention_heads=2 --vocab_size=60 --max_seq_length=16"
    options = f"--synthetic_data {sizes} --micro_batch_size=2 --max_steps=4 --checkpoint_every=1 --eval_every=-1"
    options += " --ema_decay=0.5 --weights=averaged --warmup_steps=0"
    programs.done("run", f"{options} --keep_last=9 --output_dir={tmp_path / 'run'}")
    found = []
    for number, path in enumerate(folder.find(tmp_path / "run")[-3:]):
        converted(capsys, f"tftrain:{path}", f"hf:{tmp_path / str(number)}")
        found.append(load_file(tmp_path / str(number) / "model.safetensors"))
    text = converted(capsys, f"tftrain:{tmp_path / 'run'}", f"hf:{tmp_path / 'mean'}", "--average_last=3")
    assert "the mean of the checkpoints step_00000002, step_00000003, step_00000004" in text
    mean = load_file(tmp_path / "mean/model.safetensors")
    for name, value in mean.items():
        expected = np.mean([each[name].astype(np.float64) for each in found], axis=0).astype(np.float32)
        np.testing.assert_array_equal(value, expected, err_msg=name)
    assert any(not np.array_equal(value, found[-1][name]) for name, value in mean.items())
    assert "the run evaluated their average, which --weights=averaged takes" in text
    text = converted(capsys, f"tftrain:{tmp_path / 'run'}", f"tftrain:{tmp_path / 'moving'}", "--weights=averaged")
    assert "the run evaluated their average" not in text
    moving, last = (states.stored(path) for path in (tmp_path / "moving", folder.find(tmp_path / "run")[-1]))
    for name, value in moving.items():
        np.testing.assert_array_equal(value, last[name.replace("master/", "ema/")], err_msg=name)
    assert any(not np.array_equal(value, last[name]) for name, value in moving.items())
    code, text = run(
        capsys, f"--from=tftrain:{tmp_path / 'moving'}", f"--to=hf:{tmp_path / 'none'}", "--weights=averaged"
    )
    assert (code, "--weights=averaged: it has no averaged weights; expected trained" in text) == (1, True)
    asked = "--average_last=9"
    code, text = run(capsys, f"--from=tftrain:{tmp_path / 'run'}", f"--to=hf:{tmp_path / 'none'}", asked)
    assert (code, "it has 4 checkpoints; expected 9" in text) == (1, True)
