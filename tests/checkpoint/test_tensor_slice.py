"""The algebra of pieces against an index of every element."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.states import coverage
from tftrain.checkpoint.tensor_slice import TensorSlice, boxes, copy, even_parts


@st.composite
def blocks(draw, whole):
    """A block of a whole, possibly empty."""
    offset, shape = [], []
    for size in whole:
        begin = draw(st.integers(0, size))
        offset.append(begin)
        shape.append(draw(st.integers(0, size - begin)))
    return offset, shape


@st.composite
def pieces(draw, whole):
    """A range of a block of a whole, possibly empty."""
    offset, shape = draw(blocks(whole))
    start = draw(st.integers(0, math.prod(shape)))
    return TensorSlice.block("x", whole, "F32", offset, shape, (start, draw(st.integers(start, math.prod(shape)))))


WHOLES = st.lists(st.integers(0, 6), max_size=4)


def elements(piece):
    """The flat indices of a piece's elements in the whole, in the piece's order."""
    index = np.arange(math.prod(piece.whole)).reshape(piece.whole)
    for axis, (begin, size) in enumerate(zip(piece.offset, piece.shape, strict=True)):
        index = index.take(range(begin, begin + size), axis)
    return index.reshape(-1)[piece.start : piece.stop]


@settings(max_examples=200)
@given(st.data())
def test_boxes_are_the_elements_in_their_order(data):
    piece = data.draw(pieces(data.draw(WHOLES)))
    found = []
    for box in boxes(piece):
        assert box.position == len(found)
        assert math.prod(box.shape) > 0
        found += elements(TensorSlice.block("x", piece.whole, "F32", box.offset, box.shape)).tolist()
    assert found == elements(piece).tolist()
    assert len(boxes(piece)) <= max(1, 2 * len(piece.whole) - 1)


@settings(max_examples=200)
@given(st.data())
def test_what_two_pieces_have_in_common_is_copied_and_nothing_else(data):
    whole = data.draw(WHOLES)
    source, target = data.draw(pieces(whole)), data.draw(pieces(whole))
    out = np.full(target.size, -1.0)
    copy(source, elements(source).astype(float), target, out)
    common = np.isin(elements(target), elements(source))
    np.testing.assert_array_equal(out, np.where(common, elements(target), -1))


@st.composite
def divisions(draw):
    """Pieces that hold each element of a whole once: blocks along one axis, each cut into ranges."""
    whole = draw(st.lists(st.integers(1, 6), max_size=3))
    found = []
    axis = draw(st.integers(0, len(whole) - 1)) if whole else None
    bounds = [0, *sorted(draw(st.lists(st.integers(0, whole[axis]), max_size=3))), whole[axis]] if whole else [0, 1]
    for begin, end in itertools.pairwise(bounds):
        offset, shape = [0] * len(whole), list(whole)
        if whole:
            offset[axis], shape[axis] = begin, end - begin
        size = math.prod(shape)
        cuts = [0, *sorted(draw(st.lists(st.integers(0, size), max_size=3))), size]
        found += [TensorSlice.block("x", whole, "F32", offset, shape, cut) for cut in itertools.pairwise(cuts)]
    return draw(st.permutations([piece for piece in found if piece.size]))


@settings(max_examples=200)
@given(divisions())
def test_a_division_has_no_flaw(division):
    assert coverage(division) is None
    counted = np.concatenate([elements(piece) for piece in division])
    assert sorted(counted) == list(range(math.prod(division[0].whole)))


@settings(max_examples=200)
@given(st.data())
def test_pieces_without_a_flaw_hold_each_element_once(data):
    """One piece of a sound division is changed at random: if no flaw is found, there is none."""
    division = data.draw(divisions())
    place = data.draw(st.integers(0, len(division) - 1))
    division[place] = data.draw(pieces(division[0].whole))
    if coverage(division) is None:
        counted = np.concatenate([elements(piece) for piece in division])
        assert sorted(counted) == list(range(math.prod(division[0].whole)))


@pytest.mark.parametrize(
    ("cuts", "reason"),
    [
        ([(0, 4), (4, 5)], "nowhere"),
        ([(0, 4), (3, 6)], "twice"),
        ([(0, 2), (3, 6)], "nowhere"),
        ([(1, 6)], "nowhere"),
    ],
)
def test_a_flaw_is_described(cuts, reason):
    assert reason in coverage([TensorSlice.block("x", (2, 3), "F32", elements=cut) for cut in cuts])


def test_blocks_that_overlap_or_leave_something_out_are_found():
    left, right = ([0, 0], [2, 2]), ([0, 1], [2, 2])
    assert coverage([TensorSlice.block("x", (2, 3), "F32", *block) for block in (left, right)]) == "blocks overlap"
    assert coverage([TensorSlice.block("x", (2, 3), "F32", *left)]) == "only 4 of 6 elements are there"


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(["F64", "F32", "I64"]), st.integers(0, 50)), max_size=8),
    st.integers(1, 9),
)
def test_even_parts_are_every_element_once_and_equal_bytes(tensors, ranks):
    whole = [TensorSlice.block(str(i), (size,), dtype) for i, (dtype, size) in enumerate(tensors)]
    times = [np.zeros(piece.size, int) for piece in whole]
    total = sum(piece.nbytes for piece in whole)
    for rank in range(ranks):
        held = 0
        for index, start, stop in even_parts(whole, ranks, rank):
            times[index][start:stop] += 1
            held += whole[index].part(start, stop).nbytes
        # An element is not cut, at either end.
        assert abs(held - total / ranks) < 2 * 8
    assert all((each == 1).all() for each in times)
