"""Exports for standard clients: empty batches, the names of transformers, the default, and sizes that can't work."""

import functools
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA
from tests.test_export import run
from tests.test_predict import load
from tftrain.host import log
from tftrain.inference.serving import onnx_file, saved_model
from tftrain.inference.serving.signatures import ServedModel, Signature, signatures
from tftrain.inference.serving.text_graph import graph_of


@functools.cache
def signatures_of(name, input_names="tftrain"):
    return signatures(source_of(name, input_names))


def source_of(name, input_names="tftrain"):
    model = load(f"hf:{DATA / name}")
    return ServedModel(model, graph_of(model)[0], 5, None, input_names)


@pytest.mark.parametrize("key", ["encode", "next_token", "next_tokens"])
def test_an_empty_batch_and_texts_without_a_token_have_empty_outputs(key):
    """A decoder has them here, encoders in test_bare_tensorflow.py."""
    signature = signatures_of("hf_gpt2")[key]
    for shape in [(0,)] if signature.takes_text else [(0, 0), (0, 4), (2, 0)]:
        found = signature.traced(**{spec.name: tf.zeros(shape, spec.dtype) for spec in signature.inputs})
        for value in found.values():
            assert tuple(value.shape[: len(shape)]) == shape


@pytest.mark.parametrize("shape", [(0, 3), (0, 0)])
def test_an_empty_batch_has_no_continuations(shape):
    generate = signatures_of("hf_gpt2")["generate"].traced
    settings = {"max_new_tokens": 2, "temperature": 0.0, "top_p": 1.0, "seed": 1}
    given = {name: tf.constant(value) for name, value in settings.items()}
    found = generate(input_ids=tf.zeros(shape, tf.int32), lengths=tf.zeros([0], tf.int32), **given)
    assert found["output_ids"].shape == (0, 2)


@pytest.mark.parametrize("name", ["hf_bert", "hf_gpt2"])
def test_names_and_types_are_those_of_transformers_if_asked(name):
    own, theirs = (signatures_of(name, names) for names in ("tftrain", "transformers"))
    ids = np.array([[3, 6, 7, 4], [3, 6, 4, 0]])
    values = {"input_ids": ids, "input_mask": (ids > 0).astype(int), "token_type_ids": ids * 0}
    for key, signature in own.items():
        if not signature.is_of_ids:
            continue
        specs = theirs[key].inputs
        assert [spec.name for spec in specs] == ["input_ids", "attention_mask", "token_type_ids"][: len(specs)]
        assert {spec.dtype for spec in specs} == {tf.int64}
        expected = signature.traced(**{s.name: tf.constant(values[s.name], tf.int32) for s in signature.inputs})
        given = [values["input_mask" if s.name == "attention_mask" else s.name] for s in specs]
        found = theirs[key].traced(**{s.name: tf.constant(x, tf.int64) for s, x in zip(specs, given, strict=True)})
        names = {"hidden_states": "last_hidden_state", "pooled": "pooler_output"}
        assert sorted(found) == sorted(names.get(each, each) for each in expected)
        assert all(np.array_equal(found[names.get(each, each)], x) for each, x in expected.items())


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("hf_bert_classes", {"logits", "probabilities"}),
        ("hf_bert_tokens", {"logits"}),
        ("hf_bert_answers", {"start_logits", "end_logits"}),
        ("hf_bert_model", {"hidden_states", "pooled"}),
    ],
)
def test_the_default_of_a_fine_tuned_model_is_its_task(tmp_path, name, outputs):
    source = source_of(name)._replace(text=None)
    saved_model.write(tmp_path / "1", source, signatures(source))
    functions = tf.saved_model.load(str(tmp_path / "1")).signatures
    assert set(functions["serving_default"].structured_outputs) == outputs
    assert "hidden_states" in functions["encode"].structured_outputs


def test_a_file_that_protobuf_can_not_hold_is_refused_before_weights_are_read(capsys, tmp_path, monkeypatch):
    folder = shutil.copytree(DATA / "hf_gpt2", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    # Weights of 1.2 GB, and as much for the output layer.
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 12_000_000}))
    source = f"--init_checkpoint=hf:{folder}"
    code, text = run(capsys, f"--to={tmp_path / 'x'}", source, "--format=onnx", f"--tokenizer_dir={DATA / 'hf_gpt2'}")
    assert code == 1
    assert "--format=onnx: a file would have 2.3 GB, of which 1.2 GB are the token embedding once more" in text


def test_the_limit_of_protobuf_is_one_byte_below_2_gib():
    onnx_file.check_size(2**31 - 4)
    with pytest.raises(onnx_file.FormatError, match=r"a file would have 2\.1 GB; expected at most 2\.1 GB"):
        onnx_file.check_size(2**31)


def test_a_conversion_is_silent(tmp_path, capfd):
    pytest.importorskip("tf2onnx")
    inputs = (tf.TensorSpec([None, None], tf.int32, "input_ids"),)
    signature = Signature(inputs=inputs, function=lambda input_ids: {"doubled": input_ids * 2})
    onnx_file.write(tmp_path / "x.onnx", signature)
    assert (tmp_path / "x.onnx").stat().st_size > 0
    assert capfd.readouterr() == ("", "")


def test_what_a_conversion_that_fails_has_said_is_shown(capfd):
    def fail():
        with log.native_log_on_failure():
            os.write(2, b"a reason in C++\n")
            raise ValueError("the graph")

    with pytest.raises(ValueError, match="the graph"):
        fail()
    os.write(2, b"after it\n")
    assert capfd.readouterr().err == "a reason in C++\nafter it\n"
