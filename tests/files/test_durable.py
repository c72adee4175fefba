"""Files and folders on file systems that can't flush, or rename a folder."""

import os

import pytest

from tftrain.files import durable


def refusing(number, folders_only=True):
    """Returns what os.fsync or a rename is on a file system that has no such operation."""

    def refuse(descriptor, *_):
        if not folders_only or os.path.isdir(descriptor if isinstance(descriptor, int) else str(descriptor)):
            raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", durable.UNSUPPORTED)
def test_a_folder_that_can_not_be_flushed_or_renamed_is_said_once_and_complete(tmp_path, monkeypatch, caplog, number):
    rename, files = os.rename, {"manifest.json": b"{}", "shard": b"1", "tokenizer.json": b"2"}
    monkeypatch.setattr(os, "fsync", refusing(number))
    moved = []

    def rename_files_only(path, target):
        refusing(number)(path)
        moved.append(path.name)
        return type(path)(rename(path, target) or target)

    monkeypatch.setattr(type(tmp_path), "rename", rename_files_only)
    durable._said().clear()
    for name in ("one", "two"):
        (tmp_path / ".partial").mkdir()
        for file, content in files.items():
            durable.write(tmp_path / ".partial" / file, content)
        durable.rename(tmp_path / ".partial", tmp_path / name)
        assert {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} == files
        assert not (tmp_path / ".partial").exists()
    assert moved[2] == "manifest.json", "it makes a folder complete"
    durable.remove(tmp_path / "one", tmp_path / ".trash")
    durable.probe(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two"]
    assert [caplog.text.count(words) for words in ("can't flush", "can't rename")] == [1, 1]


def test_a_disk_that_fails_is_no_file_system_that_can_not(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", refusing(5, folders_only=False))
    with pytest.raises(OSError, match=r"Input/output error: .*file"):
        durable.write(tmp_path / "file", b"")
    assert list(tmp_path.iterdir()) == []
