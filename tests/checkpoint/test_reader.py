"""Reading and checking are one pass over the files, whatever pieces are asked for."""

import hashlib
import os

import numpy as np
import pytest
import xxhash

from tests.checkpoint import states
from tftrain.checkpoint import memory, shard, source
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.tensor_slice import TensorSlice

RANDOM = np.random.default_rng(0)
TENSORS = {f"master/{size}": RANDOM.normal(size=(size, 3)).astype(np.float32) for size in (1, 7, 50, 3000)} | {
    "progress/step": np.array(7)
}


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A checkpoint of several files, whose tensors are larger than what is read at a time."""
    monkeypatch.setattr(shard, "SHARD_BYTES", 100)
    monkeypatch.setattr(source, "BLOCK_BYTES", 56)
    return states.saved(tmp_path, TENSORS)


def whole_and_parts():
    """Returns a whole tensor, random ranges and blocks, and a scalar, and what each of them is."""
    found = {}
    for name, value in TENSORS.items():
        found[TensorSlice.block(name, value.shape, states.NAMES[value.dtype])] = value
    for name, value in list(TENSORS.items())[:4]:
        start, stop = sorted(RANDOM.choice(value.size + 1, 2, replace=False))
        cut = slice(int(start), int(stop))
        found[TensorSlice.block(name, value.shape, "F32", elements=(cut.start, cut.stop))] = value.reshape(-1)[cut]
        found[TensorSlice.block(name, value.shape, "F32", (0, 1), (len(value), 2))] = value[:, 1:]
    return found


@pytest.mark.parametrize("kind", ["all", "wholes", "parts"])
def test_what_was_read_with_the_check_needs_no_file_any_more(reader, kind):
    chosen = list(whole_and_parts().items())
    expected = dict({"all": chosen, "wholes": chosen[: len(TENSORS)], "parts": chosen[len(TENSORS) :]}[kind])
    buffers = memory.arrays(expected)
    reader.verify(wanted=buffers)
    for file in reader.manifest.files:
        (reader.path / file).unlink()
    for piece, value in expected.items():
        found = reader.read(piece)
        assert np.shares_memory(found, buffers[piece])
        np.testing.assert_array_equal(found.reshape(-1), value.reshape(-1), err_msg=str(piece))


def test_each_byte_is_read_once(reader, monkeypatch):
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: (read.append(preadv(*args)), read[-1])[1])
    reader.verify(wanted=memory.arrays(whole_and_parts()))
    assert sum(read) == sum(file.bytes for file in reader.manifest.files.values())


def test_a_rank_reads_of_other_ranks_files_what_it_needs(reader):
    expected = whole_and_parts()
    for rank in range(3):
        buffers = memory.arrays(expected)
        reader.verify(rank, 3, buffers)
        for piece, value in expected.items():
            np.testing.assert_array_equal(buffers[piece], value.reshape(-1))


@pytest.mark.parametrize("digest", ["xxh3_128", "sha256"])
def test_damage_is_found_in_what_is_wanted_and_in_what_is_not(reader, digest):
    expected = dict(list(whole_and_parts().items())[:1])
    for file in reader.manifest.files:
        states.flip(reader.path / file)
        with pytest.raises(CheckpointError, match=rf"{file}: damaged: its {digest}"):
            reader.verify(wanted=memory.arrays(expected), check=digest)
        states.flip(reader.path / file)
    reader.verify(wanted=memory.arrays(expected), check=digest)


def test_digests_are_those_of_the_files(reader):
    for file, written in reader.manifest.files.items():
        content = (reader.path / file).read_bytes()
        assert written.digests["sha256"] == hashlib.sha256(content).hexdigest()
        assert written.digests["xxh3_128"] == xxhash.xxh3_128_hexdigest(content)


def test_what_the_checkpoint_lacks_is_left_out_until_it_is_asked_for(reader):
    piece = TensorSlice.block("master/nothing", (3,), "F32")
    reader.verify(wanted=memory.arrays([piece]))
    with pytest.raises(CheckpointError, match="master/nothing is missing"):
        reader.read(piece)


def test_memory_is_aligned_and_apart():
    found = memory.arrays(whole_and_parts())
    for number, (piece, values) in enumerate(found.items()):
        values.fill(number)
        assert values.nbytes == piece.nbytes
        assert values.ctypes.data % 64 == 0
    for number, values in enumerate(found.values()):
        assert (values == number).all()
