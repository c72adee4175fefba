"""`tftrain.load` and `tftrain.save`: outputs of the libraries, training of any loop, and files that come back."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tftrain
from tests.finetune import files
from tests.formats.models import DATA, assert_same_tensors
from tests.kit import runs
from tests.kit.ranks import ROOT, run_ranks
from tests.test_predict import Drawn
from tftrain.config.convert import Place
from tftrain.config.fields import ConfigError
from tftrain.files.errors import FormatError
from tftrain.formats import registry
from tftrain.formats.registry import open_weights
from tftrain.formats.run_folder import OwnWeights
from tftrain.formats.weights import with_initial_heads
from tftrain.ops.dropout import DropoutKey
from tftrain.parallel.mesh import Mesh
from tftrain.tasks import make_task

IDS = np.array([[2, 7, 8, 9, 3], [2, 10, 11, 3, 0]])
MASK = (IDS > 0).astype(np.int64)
LABELS = np.array([1, 0])
OUTPUTS = {"hidden": "last_hidden_state", "pooled": "pooler_output", "mlm_logits": "logits", "logits": "logits"}
OUTPUTS |= {"nsp_logits": "seq_relationship_logits", "task_logits": "logits"}
HEADS = {  # by the kind of a model; tests/formats has the outputs and the tensors of all
    **dict.fromkeys(("hf_bert", "tf1", "megatron"), "pooler_output logits seq_relationship_logits"),
    **dict.fromkeys(("hf_bert_masked_lm", "hf_bert_tokens", "hf_gpt2", "hf_qwen3", "hf_modernbert_mean"), "logits"),
    **{"hf_bert_model": "pooler_output", "hf_bert_classes": "pooler_output logits", "hf_distilbert_model": ""},
    "hf_roberta_answers": "start_logits end_logits",
}


def load(name="hf_bert", **flags):
    return tftrain.load(f"{name if name in ('tf1', 'megatron') else 'hf'}:{DATA / name}", **flags)


def gradients(model, training=False):
    """The loss over all outputs, and its gradients by name."""
    with tf.GradientTape() as tape:
        found = model({"input_ids": IDS, "attention_mask": MASK}, training=training)
        loss = sum(tf.reduce_mean(tf.square(tf.cast(each, tf.float32))) for each in found.values())
    names = model.named_variables()
    return loss, dict(zip(names, tape.gradient(loss, list(names.values())), strict=True))


@pytest.mark.parametrize("name", HEADS)
def test_outputs_are_those_of_the_library_and_the_model_goes_back_with_the_same_bits(tmp_path, name):
    model, expected = load(name), np.load(DATA / name / "expected.npz")
    inputs = {each: expected[each].astype(np.int64) for each in expected if each.endswith(("_ids", "_mask"))}
    found = model(inputs)
    assert list(found) == ["last_hidden_state", *HEADS[name].split()]
    real = inputs["input_mask"].astype(bool) if "input_mask" in inputs else slice(None)
    if "start_logits" in found:
        found["logits"] = tf.stack([found["start_logits"], found["end_logits"]], -1)
    for theirs in OUTPUTS.keys() & set(expected):
        rows = real if expected[theirs].ndim == 3 else slice(None)
        ours = found[OUTPUTS[theirs]].numpy()[rows]
        np.testing.assert_allclose(ours, expected[theirs][rows], rtol=1e-5, atol=1e-5, err_msg=theirs)
    tftrain.save(model, f"hf:{tmp_path / 'back'}")
    if name.startswith("hf_"):
        assert_same_tensors(tmp_path / "back", DATA / name)
    again = tftrain.load(str(tmp_path / "back"))(inputs)
    for output, value in model(inputs).items():
        np.testing.assert_array_equal(again[output], value)


def test_a_run_and_a_checkpoint_are_loaded_and_dropout_is_that_of_the_step_of_a_run(tmp_path):
    flags = ("--max_steps=2", "--eval_every=-1", "--seed=5", "--ema_decay=0.5")
    config = runs.configured(f"--output_dir={tmp_path / 'run'}", *flags)
    runs.train(config)
    model = tftrain.load(str(tmp_path / "run"), rank=3, seed=5)
    newest = sorted((tmp_path / "run/checkpoints").iterdir())[-1]
    averaged = tftrain.load(newest, weights="averaged").named_variables()
    average = OwnWeights(newest, averaged=True)
    for name, value in averaged.items():
        np.testing.assert_array_equal(value, average.read(name))
    assert np.abs(averaged["embeddings/word"] - model.named_variables()["embeddings/word"]).max() > 0
    for name, value in tftrain.load(newest).named_variables().items():
        np.testing.assert_array_equal(model.named_variables()[name], value)
    task = make_task(config, Mesh(), None, open_weights(Place("tftrain", str(newest))).shard)
    batch = {"input_ids": tf.constant(IDS, tf.int32), "input_mask": tf.constant(MASK, tf.int32)}
    batch["segment_ids"] = tf.zeros_like(batch["input_ids"])
    for step in range(2):
        key = DropoutKey(5, tf.constant(step, tf.int64), tf.constant(3 * 2, tf.int64))
        expected = task.model.output(task.model.hidden_states(batch, key))
        np.testing.assert_array_equal(model(batch, training=True)["last_hidden_state"], expected)
    assert int(model.dropout_step) == 2
    assert np.abs(expected - model(batch)["last_hidden_state"]).max() > 0.1
    flash = tftrain.load(newest, attn_impl="flash")(batch)["last_hidden_state"].numpy()
    np.testing.assert_allclose(flash[MASK > 0], model(batch)["last_hidden_state"].numpy()[MASK > 0], atol=1e-5)


@pytest.mark.multirank
def test_steps_of_a_plain_loop_on_two_ranks_are_those_of_a_run(tmp_path):
    start = Drawn(files.tokenizer(), hidden_dropout_prob=0.2, initializer_range=0.1)
    (tmp_path / "start").mkdir()
    registry.write_weights(Place("tftrain", str(tmp_path / "start")), with_initial_heads(start, ("pooler",), 1))
    train = files.write_classes(tmp_path / "train.tsv", 200, seed=1)
    args = (
        *(f"--init_checkpoint=tftrain:{tmp_path / 'start'}", "--task=classification", f"--train_file={train}"),
        *("--max_steps=4", "--max_seq_length=16", "--optimizer=adamw", "--adam_epsilon=1e-4", "--schedule=constant"),
        *("--warmup_steps=0", "--learning_rate=1e-3", "--weight_decay=0.1", "--clip_global_norm=0", "--eval_every=-1"),
        *("--log_every=1", f"--output_dir={tmp_path / 'run'}", "--global_batch_size=8"),
    )
    run_ranks(2, ["-m", "tftrain.run", *args])
    run_ranks(2, ["-m", "tests.inference.plain_loop", str(tmp_path), "4", *args])
    losses = json.loads((tmp_path / "losses.json").read_text())
    expected = runs.losses(tmp_path / "run")
    assert len(losses) == len(expected) == 4
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    ours, theirs = (open_weights(Place("tftrain", str(tmp_path / name))) for name in ("model", "run"))
    for name in theirs.shapes:
        np.testing.assert_allclose(ours.read(name), theirs.read(name), rtol=0, atol=1e-6, err_msg=name)


def test_fit_trains_and_weights_are_saved_by_name(tmp_path):
    model = load("hf_bert", task="classification", labels=["no", "yes"], hidden_dropout_prob=0.0)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.Adam(0.01), loss={"logits": loss}, metrics={"logits": "accuracy"})
    history = model.fit({"input_ids": IDS, "attention_mask": MASK}, {"logits": LABELS}, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.2 < history["loss"][0]
    for ending in ("weights.h5", "tf"):
        model.save_weights(tmp_path / ending)
        other = load("hf_bert", task="classification", labels=["no", "yes"], seed=2)
        other.load_weights(tmp_path / ending)
        for name, value in model.named_variables().items():
            np.testing.assert_array_equal(other.named_variables()[name], value)
        assert int(other.dropout_step) == 12
    names = {each.name for each in model.trainable_variables}
    assert {"classifier/kernel:0", "layer_00/attention/query/kernel:0", "embeddings/word:0"} <= names
    assert "masked_lm/bias:0" not in names
    tftrain.save(model, f"hf:{tmp_path / 'classes'}")
    config = json.loads((tmp_path / "classes/config.json").read_text())
    assert (config["architectures"], config["id2label"]) == (["BertForSequenceClassification"], {"0": "no", "1": "yes"})


@pytest.mark.parametrize(("precision", "epsilon"), [("bf16", 2.0**-8), ("fp16", 2.0**-11)])
def test_16_bits_have_the_gradients_of_fp32_and_weights_that_add_up_small_steps(precision, epsilon):
    exact, model = load(), load(precision=precision)
    _, expected = gradients(exact)
    assert {each.dtype for each in model.trainable_variables} == {tf.float32}
    for found in (gradients(model)[1], tf.function(lambda: gradients(model)[1])()):
        for name, value in expected.items():
            if not name.endswith("key/bias"):  # Its gradient is rounding alone.
                # Two blocks round a number some twenty times.
                most = 20 * epsilon * np.abs(value).max()
                np.testing.assert_allclose(found[name], value, atol=most, rtol=0, err_msg=name)
    word = model.named_variables()["embeddings/word"]
    before, outputs = word.numpy(), model(IDS)["last_hidden_state"].numpy()
    for _ in range(100):
        word.assign_add(1e-4 * np.sign(before))
    np.testing.assert_allclose(word.numpy() - before, 1e-2 * np.sign(before), rtol=1e-2)
    assert np.abs(model(IDS)["last_hidden_state"].numpy() - outputs).max() > 0


@pytest.mark.parametrize(
    "flags",
    [
        {"activation_checkpointing": "full", "precision": "bf16"},
        {"ln_impl": "reference", "gelu_impl": "reference", "dropout_add_impl": "reference"},
        {"jit_compile": True, "activation_checkpointing": "full"},
    ],
)
def test_levers_are_keyword_arguments_and_change_no_loss(flags):
    plain = load(**({"precision": flags["precision"]} if "precision" in flags else {}))
    model = load(**flags)
    compiled = tf.function(lambda: gradients(model, True), jit_compile=True)
    (loss, found) = compiled() if "jit_compile" in flags else gradients(model, True)
    expected, wanted = gradients(plain, True)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    word = "embeddings/word"
    np.testing.assert_allclose(found[word], wanted[word], atol=1e-5 * np.abs(wanted[word]).max())


WRONG = [
    ("hf_bert", {"hiden_size": 3}, "--hiden_size=3: no such flag"),
    ("hf_bert", {"hidden_size": 3}, "--hidden_size=3: expected 24, as in hf:"),
    ("hf_bert", {"learning_rate": 1e-3}, "--learning_rate=0.001: remove this argument: it is for a run"),
    ("hf_bert", {"tensor_parallel_size": 2}, "--tensor_parallel_size=2: remove this argument"),
    ("hf_bert", {"weights": "averaged"}, "--weights=averaged: expected trained: only a run of tftrain has averaged"),
    ("hf_bert", {"weights": "mean"}, "--weights=mean: expected one of trained, averaged"),
    ("hf_bert", {"precision": "fp8"}, "--precision=fp8: expected one of fp32, fp16, bf16"),
    ("hf_bert", {"task": "classification"}, "--labels: expected the names of the classes"),
    ("hf_bert", {"task": "classification", "labels": ["a", "a"]}, "--labels=a: expected each class once"),
    ("hf_bert", {"task": "regression", "labels": ["a"]}, "--labels=a: remove this flag"),
    ("hf_bert", {"task": "my_task:Mine"}, "--task=my_task:Mine: expected a task of tftrain"),
    (
        "hf_gpt2",
        {"task": "classification", "labels": ["a", "b"]},
        "--task=classification: expected pretraining, completion or embedding",
    ),
    ("hf_bert_masked_lm", {"task": "regression"}, "it lacks output heads (pooler); --init_missing"),
    ("nothing", {}, "no such folder; expected a folder of transformers"),
]


@pytest.mark.parametrize(("name", "flags", "message"), WRONG)
def test_a_wrong_argument_is_named(name, flags, message):
    with pytest.raises((ConfigError, FormatError)) as raised:
        load(name, **flags)
    assert message in str(raised.value)


def test_wrong_places_and_inputs_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no checkpoint; expected the folder of one"):
        tftrain.load(tmp_path)
    with pytest.raises(ConfigError, match="expected FORMAT:PATH, where FORMAT is one of tftrain, hf"):
        tftrain.load("bert-base-uncased")
    model = load()
    for place, message in ((DATA, "expected FORMAT:PATH"), (f"hf:{DATA}", "expected a folder that does not exist yet")):
        with pytest.raises(ConfigError, match=message):
            tftrain.save(model, place)
    with pytest.raises(TypeError, match=r"got a Sequential; expected what tftrain\.load returned"):
        tftrain.save(tf_keras.Sequential(), f"hf:{tmp_path / 'out'}")
    for inputs, message in (
        ({"input_ids": IDS, "special_tokens_mask": MASK}, "got special_tokens_mask; expected of input_ids, input_mask"),
        ({"attention_mask": MASK}, "got no input_ids"),
        (IDS[0], r"input_ids of the shape \(5,\); expected one row a text"),
        (np.zeros([1, 40]), "sequences of 40 tokens do not fit --max_position_embeddings"),
    ):
        with pytest.raises(ValueError, match=message):
            model(inputs)


def test_keras_3_is_named(monkeypatch):
    monkeypatch.setattr(tf.keras.layers, "__name__", "keras.layers")
    with pytest.raises(ImportError, match="expected Keras 2: start Python with TF_USE_LEGACY_KERAS=1"):
        tftrain.load("hf:x")


def test_the_code_of_the_guide_runs_after_a_light_import(tmp_path):
    shutil.copytree(DATA / "hf_bert", tmp_path / "bert")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/from_transformers.md").read_text(), re.DOTALL)
    environ = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    light = "import sys, tftrain; assert not {'tensorflow', 'numpy'} & set(sys.modules)\n"
    command = [sys.executable, "-c", light + code]
    found = subprocess.run(
        command, cwd=tmp_path, env=environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    losses = [float(line) for line in found.stdout.splitlines()[:3]]
    assert losses[0] == pytest.approx(np.log(2), abs=0.3)
    assert json.loads((tmp_path / "trained/config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}
