"""A small file is read whole; a pipe, a device, a folder and a large file are refused at once."""

import os

import pytest

from tftrain.files.reading import read_small


def test_a_file_up_to_the_limit_is_read(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_small(str(tmp_path / "x"), 5) == b"12345"
    with pytest.raises(OSError, match="Larger than 4 bytes"):
        read_small(str(tmp_path / "x"), 4)


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "pipe", "Not a regular file"),
        (tmp_path, "Is a directory"),
        ("/dev/zero", "Not a"),
    ):
        with pytest.raises(OSError, match=words):
            read_small(str(path), 5)
