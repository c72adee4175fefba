"""torch's files: no code in them runs, damaged ones are refused, and models in them are read."""

import argparse
import json
import os
import pickle
import shutil
import zipfile

import numpy as np
import pytest

from tests.formats.models import DATA
from tests.formats.test_convert import converted
from tftrain.config.convert import Place
from tftrain.files.errors import FormatError
from tftrain.formats import torch_file
from tftrain.formats.registry import open_weights
from tftrain.formats.torch_file import Placeholder, Record, TorchFile

MEGATRON = DATA / "megatron"
FILE = "mp_rank_00/model_optim_rng.pt"
ORIGINAL = TorchFile(MEGATRON / "iter_0000010" / FILE)
TENSORS = {name: ORIGINAL.read(each) for name, each in ORIGINAL.content["model"].items() if each is not None}


def test_tensors_come_back(tmp_path):
    random = np.random.default_rng(1)
    values = {
        "a": random.normal(size=(3, 4)).astype(np.float32),
        "b": np.float32(2.5).reshape(()),
        "c": np.zeros((0, 2)),
    }
    content = {"inner": {name: Placeholder(name, value.shape) for name, value in values.items()}, "number": 3}
    torch_file.write(tmp_path / "x.pt", content, values.items())
    file = TorchFile(tmp_path / "x.pt")
    assert file.content["number"] == 3
    for name, value in values.items():
        np.testing.assert_array_equal(file.read(file.content["inner"][name]), value)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_a_pickle_does_not_run(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model": Evil(tmp_path / "made")}, protocol=2))
    content = TorchFile(tmp_path / "x.pt").content
    assert isinstance(content["model"], Record)
    assert not (tmp_path / "made").exists()


def zipped(name):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"R.")

    return write


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "no zip": lambda path: path.write_bytes(pickle.dumps([1])),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-700]),
    "no pickle": zipped("archive/other"),
    "stack": zipped("archive/data.pkl"),
    "outside": lambda path: None,
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_refused(tmp_path, how):
    path = tmp_path / "x.pt"
    shutil.copy(MEGATRON / "iter_0000010" / FILE, path)
    DAMAGES[how](path)
    with pytest.raises(FormatError, match=r"x\.pt"):
        opened(path, offset=how == "outside")


def opened(path, offset):
    file = TorchFile(path)
    tensor = file.content["model"]["lm_head.dense.weight"]
    return file.read(tensor._replace(offset=int(offset)))


def write_megatron(folder, model, tensors, **args):
    """Writes a checkpoint with the arguments of the fixture and others."""
    args = argparse.Namespace(**{**ORIGINAL.content["args"].attributes, "params_dtype": "fp32", **args})
    (folder / "mp_rank_00").mkdir()
    torch_file.write(folder / FILE, {"args": args, "checkpoint_version": 3.0, "model": model}, tensors.items())
    return open_weights(Place("megatron", str(folder)))


def test_megatron_comes_back_with_the_same_bits_and_a_padded_vocabulary(capsys, tmp_path):
    converted(capsys, f"megatron:{MEGATRON}", f"tftrain:{tmp_path / 'own'}")
    converted(capsys, f"tftrain:{tmp_path / 'own'}", f"megatron:{tmp_path / 'back'}")
    after = TorchFile(tmp_path / "back/release" / FILE)
    assert after.content["model"].keys() == TENSORS.keys()
    for name, tensor in after.content["model"].items():
        value, old = after.read(tensor), TENSORS[name]
        np.testing.assert_array_equal(value[: len(old)], old, err_msg=name)
        assert not value[len(old) :].any()
        assert len(value) == (128 if name in ("embedding.word_embeddings.weight", "output_layer.bias") else len(old))
    assert open_weights(Place("megatron", str(tmp_path / "back"))).model.vocab_size == 40


def test_names_of_the_older_megatron_are_read(tmp_path):
    weights = open_weights(Place("megatron", str(MEGATRON)))
    old_names = {
        "embedding.": "language_model.embedding.",
        "encoder.": "language_model.encoder.",
        "pooler.": "language_model.pooler.",
        "linear_qkv.": "query_key_value.",
        "self_attention.linear_proj.": "self_attention.dense.",
        "linear_fc1.": "dense_h_to_4h.",
        "linear_fc2.": "dense_4h_to_h.",
        "pre_mlp_layernorm.": "post_attention_layernorm.",
        "lm_head.layer_norm.": "lm_head.layernorm.",
        "output_layer.bias": "lm_head.bias",
    }
    nested, values = {}, {}
    for name, value in TENSORS.items():
        for new, old in old_names.items():
            name = name.replace(new, old)
        values[name] = value
        *path, leaf = name.split(".", 3)
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[leaf] = Placeholder(name, value.shape)
    found = write_megatron(tmp_path, nested, values)
    assert found.shapes == weights.shapes
    assert all(np.array_equal(found.read(name), weights.read(name)) for name in weights.shapes)


def with_content(**content):
    return lambda folder: torch_file.write(folder / FILE, {"model": {}, **content}, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "mp_rank_01").mkdir(), "sharded over 2 model parallel ranks"),
        (
            with_content(args=argparse.Namespace(hidden_size=24), checkpoint_version=2.0),
            "checkpoint_version is 2.0; expected 3.0",
        ),
        (with_content(checkpoint_version=3.0), "it has no args of a run"),
        (lambda folder: (folder / FILE).unlink(), "expected a folder of Megatron-LM"),
    ],
)
def test_a_checkpoint_of_megatron_that_can_not_be_read_says_why(tmp_path, change, message):
    shutil.copytree(MEGATRON, tmp_path / "model")
    change(tmp_path / "model/iter_0000010")
    with pytest.raises(FormatError, match=message):
        open_weights(Place("megatron", str(tmp_path / "model")))


def test_a_tanh_gelu_of_megatron_is_said_to_differ_in_the_head(tmp_path):
    model = {name: Placeholder(name, value.shape) for name, value in TENSORS.items()}
    weights = write_megatron(tmp_path, model, TENSORS, bias_gelu_fusion=True)
    assert weights.model.gelu_form == "tanh"
    assert "masked-LM output head has the exact GeLU" in json.dumps(weights.notes)
