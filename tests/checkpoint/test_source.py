"""What is read of a file is what is in it, wherever it is read from, and each byte once."""

import errno
import fcntl
import itertools
import os

import numpy as np
import pytest

from tftrain.checkpoint import memory
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.memory import PAGE_BYTES
from tftrain.checkpoint.source import ShardFile

RANDOM = np.random.default_rng(0)
SIZES = (0, 1, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES, 9 * PAGE_BYTES + 5)


def written(tmp_path, size):
    """Writes a file that the system then has to read from the disk."""
    path, content = tmp_path / "x", RANDOM.bytes(size)
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return path, content


def opened(path, size, alone=True, pages=2):
    return ShardFile(path, size, memory.blocks(1, pages * PAGE_BYTES)[0], alone)


def bytes_of(source, begin, end):
    return b"".join(map(bytes, source.blocks(begin, end)))


@pytest.fixture
def permits(tmp_path):
    """Skips where files can't be read directly."""
    path, _ = written(tmp_path, 1)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system of the tests reads through the page cache only")


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_any_bytes_of_a_file_are_what_is_there(tmp_path, size, alone):
    path, content = written(tmp_path, size)
    with opened(path, size, alone) as source:
        for begin, end in [(0, size), *np.sort(RANDOM.integers(0, size + 1, (30, 2)))]:
            assert bytes_of(source, int(begin), int(end)) == content[begin:end]


@pytest.mark.parametrize("alone", [False, True])
def test_a_file_in_order_is_read_once(tmp_path, alone, monkeypatch):
    read, preadv = [], os.preadv
    path, content = written(tmp_path, SIZES[-1])
    with opened(path, len(content), alone) as source:
        monkeypatch.setattr(os, "preadv", lambda *args: (read.append(preadv(*args)), read[-1])[1])
        cuts = [0, 1, 9, PAGE_BYTES, PAGE_BYTES + 3, 5 * PAGE_BYTES + 1, len(content)]
        assert b"".join(bytes_of(source, *cut) for cut in itertools.pairwise(cuts)) == content
    assert sum(read) == len(content)


def test_a_file_on_the_disk_is_read_past_the_page_cache_and_one_in_it_is_not(tmp_path, permits):
    path, content = written(tmp_path, 64 * PAGE_BYTES)
    with opened(path, len(content)) as source:
        assert source.direct
        bytes_of(source, 0, len(content))
    with opened(path, len(content)) as source:
        assert source.direct, "reading directly has filled the page cache"
    with opened(path, len(content), alone=False) as source:
        assert not source.direct
    path.read_bytes()
    with opened(path, len(content)) as source:
        assert not source.direct


def test_a_disk_of_larger_pages_is_read_through_the_page_cache(tmp_path, permits, monkeypatch):
    preadv, refused = os.preadv, []

    def strict(descriptor, blocks, *rest):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(descriptor, blocks, *rest)

    path, content = written(tmp_path, SIZES[-1])
    with opened(path, len(content)) as source:
        assert source.direct
        monkeypatch.setattr(os, "preadv", strict)
        assert bytes_of(source, 0, len(content)) == content
        assert not source.direct
    assert len(refused) == 1


def test_a_file_system_that_refuses_to_read_without_waiting_reads_ahead(tmp_path, permits, monkeypatch):
    preadv = os.preadv

    def refusing(descriptor, blocks, offset, *flags):
        if flags:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return preadv(descriptor, blocks, offset)

    path, content = written(tmp_path, SIZES[-1])
    monkeypatch.setattr(os, "preadv", refusing)
    with opened(path, len(content)) as source:
        assert not source.direct
        assert bytes_of(source, 0, len(content)) == content


@pytest.mark.parametrize("alone", [False, True])
def test_a_file_that_becomes_shorter_is_named(tmp_path, alone):
    path, content = written(tmp_path, SIZES[-1])
    with opened(path, len(content), alone) as source:
        os.truncate(path, PAGE_BYTES + 7)
        with pytest.raises(CheckpointError, match="x: damaged: it ends"):
            bytes_of(source, 0, len(content))


@pytest.mark.parametrize("size", [-1, 1])
def test_a_file_of_another_size_is_refused(tmp_path, size):
    path, content = written(tmp_path, PAGE_BYTES)
    with pytest.raises(CheckpointError, match="x: damaged: it has"):
        opened(path, len(content) + size)


def test_what_the_disk_can_t_read_is_named(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    path, content = written(tmp_path, PAGE_BYTES)
    with opened(path, len(content)) as source:
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(CheckpointError, match="x: can't be read: Input/output error"):
            bytes_of(source, 0, len(content))
