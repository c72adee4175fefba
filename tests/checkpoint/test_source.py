"""What is read of a file is what is in it, and each byte once."""

import errno
import itertools
import os

import numpy as np
import pytest

from tftrain.checkpoint import source
from tftrain.checkpoint.errors import CheckpointError

RANDOM = np.random.default_rng(0)
BLOCK = 8192


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(source, "BLOCK_BYTES", BLOCK)


@pytest.fixture(params=(0, 1, BLOCK, 9 * BLOCK // 2 + 5))
def written(request, tmp_path):
    path, content = tmp_path / "x", RANDOM.bytes(request.param)
    path.write_bytes(content)
    return path, content


def bytes_of(blocks, begin, end):
    return b"".join(map(bytes, blocks(begin, end)))


def test_any_bytes_of_a_file_are_what_is_there(written):
    path, content = written
    with source.opened(path, len(content)) as blocks:
        for begin, end in [(0, len(content)), *np.sort(RANDOM.integers(0, len(content) + 1, (30, 2)))]:
            assert bytes_of(blocks, int(begin), int(end)) == content[begin:end]
            target = np.empty(end - begin, np.uint8)
            assert all(np.shares_memory(each, target) for each in blocks(int(begin), int(end), target))
            assert bytes(target) == content[begin:end]


def test_a_file_in_order_is_read_once(written, monkeypatch):
    read, preadv = [], os.preadv
    path, content = written
    with source.opened(path, len(content)) as blocks:
        monkeypatch.setattr(os, "preadv", lambda *args: (read.append(preadv(*args)), read[-1])[1])
        cuts = [*filter(lambda cut: cut < len(content), (0, 1, 9, BLOCK + 3)), len(content)]
        assert b"".join(bytes_of(blocks, *cut) for cut in itertools.pairwise(cuts)) == content
    assert sum(read) == len(content)


def test_a_file_that_becomes_shorter_or_has_another_size_is_named(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(3 * BLOCK))
    for size in (-1, 1):
        with pytest.raises(CheckpointError, match="x: damaged: it has"), source.opened(path, 3 * BLOCK + size):
            pass
    with source.opened(path, 3 * BLOCK) as blocks:
        os.truncate(path, BLOCK + 7)
        with pytest.raises(CheckpointError, match="x: damaged: it ends"):
            bytes_of(blocks, 0, 3 * BLOCK)


def test_what_the_disk_can_t_read_is_named(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "x"
    path.write_bytes(bytes(BLOCK))
    with source.opened(path, BLOCK) as blocks:
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(CheckpointError, match="x: can't be read: Input/output error"):
            bytes_of(blocks, 0, BLOCK)
