"""A few series stand for the pieces of many ranks, exactly."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.checkpoint.states import coverage
from tftrain.checkpoint import manifest, placement, tensor_slice
from tftrain.checkpoint.manifest import CheckpointManifest
from tftrain.checkpoint.placement import Placement
from tftrain.checkpoint.save import Announcement
from tftrain.checkpoint.shard import Written, in_file_order
from tftrain.checkpoint.tensor_slice import TensorSlice

DIGESTS = {"xxh3_128": "0" * 32, "sha256": "0" * 64}
PIECE = b'"name": "t", "whole": [1], "dtype": "F32", "offset": [0], "shape": [1]'


@some.composite
def files(draw):
    """Draws files in which ranks have written blocks and ranges of some tensors."""
    held = {}
    ranks, blocks = draw(some.integers(1, 6)), draw(some.integers(1, 3))
    for number in range(draw(some.integers(1, 4))):
        whole = (draw(some.integers(blocks, 7)), draw(some.integers(1, 4)))
        bounds = [whole[0] * block // blocks for block in range(blocks + 1)]
        for block, (low, high) in enumerate(itertools.pairwise(bounds)):
            size = (high - low) * whole[1]
            inner = draw(some.lists(some.integers(0, size), min_size=ranks - 1, max_size=ranks - 1))
            even = [min(rank * -(-size // ranks), size) for rank in range(1, ranks)]
            cuts = [0, *sorted(draw(some.sampled_from([inner, even]))), size]
            for rank, cut in enumerate(itertools.pairwise(cuts)):
                if cut[0] < cut[1]:
                    one = TensorSlice.block(f"t{number}", whole, "F32", (low, 0), (high - low, whole[1]), cut)
                    held.setdefault(f"shard_{rank * blocks + block:05d}_000.safetensors", []).append(one)
    return {
        name: Written(sum(each.nbytes for each in held[name]), DIGESTS, tuple(in_file_order(held[name])))
        for name in sorted(held)
    }


def announced(files):
    ranks = (msgspec.json.encode(Announcement({name: file})) for name, file in files.items())
    decoded = (msgspec.json.decode(each, type=Announcement).files for each in ranks)
    return Placement.of(dict(itertools.chain.from_iterable(each.items() for each in decoded)))


@given(files())
def test_a_manifest_holds_the_pieces_of_every_file(files):
    made = announced(files)
    assert dict(made) == files == dict(Placement.of(files))
    read = manifest.decode(manifest.encode(CheckpointManifest(1, made, {})), "x")
    assert dict(read.files) == files
    assert placement.nbytes(made) == {name: sum(each.nbytes for each in file.pieces) for name, file in files.items()}


@given(files(), some.data())
def test_the_files_with_elements_of_a_piece_are_found(files, data):
    made = announced(files)
    name = data.draw(some.sampled_from(sorted(made.tensors)))
    whole = next(iter(made.tensors[name])).whole
    lows = [data.draw(some.integers(0, size - 1)) for size in whole]
    shape = [data.draw(some.integers(1, size - low)) for low, size in zip(lows, whole, strict=True)]
    start = data.draw(some.integers(0, int(np.prod(shape)) - 1))
    stop = data.draw(some.integers(start + 1, int(np.prod(shape))))
    held = [each for file in files.values() for each in file.pieces if each.name == name]
    wanted = [TensorSlice.block(name, whole, "F32", lows, shape, (start, stop)), *held]
    for one in wanted:
        expected = {
            file
            for file, about in files.items()
            if any(each.name == name and tensor_slice.overlap(each, one) for each in about.pieces)
        }
        assert made.holders(one) == expected
    assert coverage(held) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"files": [1]}',
        b'{"files": {"x": [1, {}, [{%s, "start": 0}]]}}' % PIECE,
        b'{"files": {"x": [1, {}, [{%s, "start": 0, "stop": 99999999999999999999}]]}}' % PIECE,
    ],
)
def test_what_is_no_announcement_is_refused(content):
    with pytest.raises(ValueError, match=r"truncated|Expected|missing"):
        msgspec.json.decode(content, type=Announcement)


def test_ranks_that_contradict_each_other_are_refused():
    files = {}
    for number, whole in enumerate(((4,), (5,))):
        piece = TensorSlice.block("x", whole, "F32", elements=(2 * number, 2 * number + 2))
        files[f"shard_{number:05d}_000.safetensors"] = Written(99, DIGESTS, (piece,))
    with pytest.raises(ValueError, match=r"x is F32 \[4\] on one rank, and F32 \[5\] on another"):
        Placement.of(files)


def test_ranks_with_equal_parts_are_one_series():
    size, ranks = 10_000, 1000
    part = size // ranks
    files = {
        f"shard_{rank:05d}_000.safetensors": Written(
            999, DIGESTS, (TensorSlice.block("x", (size,), "F32", elements=(rank * part, (rank + 1) * part)),)
        )
        for rank in range(ranks)
    }
    (rows,) = announced(files).tensors["x"].values()
    assert list(placement.series_of(rows)) == [[0, 0, part, ranks, 1, part]]


def test_files_are_numbered_by_their_names_whatever_the_order_of_the_ranks():
    """The name of a thousandth file sorts before that of the second one."""
    names = [f"shard_00000_{number:03d}.safetensors" for number in (1, 1000, 0)]
    files = {
        name: Written(99, DIGESTS, (TensorSlice.block("x", (3,), "F32", elements=(start, start + 1)),))
        for start, name in enumerate(names)
    }
    assert dict(announced(files)) == files
