"""Checkpoints: whole or not at all, the newest kept, damage found."""

import json

import numpy as np
import pytest

from tftrain.train import checkpoint
from tftrain.train.checkpoint import CheckpointError

TENSORS = {"master/a": np.arange(6, dtype=np.float32).reshape(2, 3), "progress/step": np.array(7)}


def save(folder, step, keep_last=3):
    return checkpoint.save(folder, step, TENSORS, {"config": {"seed": 1}}, keep_last)


def test_what_was_saved_comes_back(tmp_path):
    tensors, manifest = checkpoint.load(save(tmp_path, 7))
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype
    assert (manifest["step"], manifest["config"]) == (7, {"seed": 1})


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 9, 10):
        save(tmp_path, step, keep_last=2)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_00000009", "step_00000010"]
    assert checkpoint.locate("auto", tmp_path).name == "step_00000010"


def test_nothing_to_resume_is_a_fresh_start(tmp_path):
    assert checkpoint.locate("auto", tmp_path) is None
    save(tmp_path, 1)
    assert checkpoint.locate("none", tmp_path) is None


def test_a_named_checkpoint_must_exist(tmp_path):
    with pytest.raises(CheckpointError, match=r"--resume=.*nowhere"):
        checkpoint.locate(str(tmp_path / "nowhere"), tmp_path)


def test_a_checkpoint_without_manifest_does_not_exist(tmp_path):
    save(tmp_path, 1)
    (save(tmp_path, 2) / "manifest.json").unlink()
    assert checkpoint.locate("auto", tmp_path).name == "step_00000001"


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_is_found_and_named(tmp_path, damage):
    path = save(tmp_path, 1) / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    {
        "flip": lambda: path.write_bytes(content),
        "truncate": lambda: path.write_bytes(content[:-4]),
        "remove": path.unlink,
    }[damage]()
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        checkpoint.load(path.parent)


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"format_version": 99})])
def test_a_manifest_of_another_kind_is_refused(tmp_path, content):
    path = save(tmp_path, 1)
    (path / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpoint.load(path)


def test_a_failed_save_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.safetensors.numpy, "save_file", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(tmp_path, 2)
    assert [path.name for path in checkpoint.folder(tmp_path).iterdir()] == ["step_00000001"]


def test_an_interrupted_save_of_the_same_step_is_overwritten(tmp_path):
    leftover = checkpoint.folder(tmp_path) / ".partial_step_00000001"
    leftover.mkdir(parents=True)
    (leftover / "junk").write_text("x")
    assert not (save(tmp_path, 1) / "junk").exists()
