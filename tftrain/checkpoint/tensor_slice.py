"""A slice of a tensor: its place in the whole tensor, as in Megatron core's `ShardedTensor`, and overlaps of slices.

Ranks divide the state in two ways. Tensor parallel ranks hold rectangular blocks of a tensor. Data parallel ranks hold
ranges of a block's elements in row-major order. A slice has the block and the range. The elements of a slice form a
few boxes, each contiguous in the slice: at most two for each dimension, at the beginning and the end of the range, and
one in the middle. Slices of different layouts are compared box by box.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, Protocol

import numpy as np
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # as files may give it
Shape = tuple[Count, ...]
# By the names that safetensors gives them. A training state has no other dtypes.
DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "I64": np.dtype("<i8")}

# The tensor `master/NAME` of a checkpoint is the weight NAME, in fp32; other kinds are the slots of the update rule.
MASTER = "master"
AVERAGE = "ema"  # the exponential moving average of the weight


@dataclass(frozen=True)
class TensorSlice:
    """A slice of a named tensor: the range [start, stop) of a block's elements in row-major order."""

    name: str  # the tensor's global name, such as `master/layer_00/attention/query/kernel`
    whole: Shape  # shape of the whole tensor
    dtype: str  # a key of `DTYPES`
    offset: Shape  # where the block begins in the whole tensor
    shape: Shape  # shape of the block
    start: Count
    stop: Count
    # Number of this copy among the ranks that hold the same elements, no part of equality; copy 0 is saved.
    replica_id: Count = field(default=0, compare=False)

    @staticmethod
    def block(
        name: str,
        whole: Sequence[int],
        dtype: str,
        offset: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        elements: tuple[int, int] | None = None,
        replica_id: int = 0,
    ) -> "TensorSlice":
        """Returns a slice; by default offset, shape and elements are those of the whole tensor."""
        whole = tuple(whole)
        offset = (0,) * len(whole) if offset is None else tuple(offset)
        shape = whole if shape is None else tuple(shape)
        start, stop = (0, math.prod(shape)) if elements is None else elements
        return TensorSlice(name, whole, dtype, offset, shape, start, stop, replica_id)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * DTYPES[self.dtype].itemsize

    @property
    def is_divided(self) -> bool:
        """Whether the block is a part of the tensor only, because tensor parallel ranks divide the tensor."""
        return self.shape != self.whole

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The block's shape if the slice is the whole block, else [size]."""
        return self.shape if self.size == math.prod(self.shape) else (self.size,)

    def part(self, start: int, stop: int) -> "TensorSlice":
        """Returns a range of this slice; `start` and `stop` count from the beginning of the slice."""
        return replace(self, start=self.start + start, stop=self.start + stop)


class TensorData(NamedTuple):
    """A slice and its elements, flat."""

    piece: TensorSlice
    values: np.ndarray


class Box(NamedTuple):
    """A part of a slice that is a block of the whole tensor and contiguous in the slice."""

    offset: Shape
    shape: Shape
    position: int  # index of its first element in the slice


def boxes(piece: TensorSlice) -> list[Box]:
    """Returns the boxes that a slice consists of, in the order of its elements, without empty ones."""
    boxes, position = [], 0
    for offset, shape in _range_boxes(piece.shape, piece.start, piece.stop):
        boxes.append(Box(tuple(a + b for a, b in zip(piece.offset, offset, strict=True)), shape, position))
        position += math.prod(shape)
    return boxes


def _range_boxes(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """Yields offset and shape of the boxes of a range of a block of this shape."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = start // row, (stop - 1) // row
    if first == last:
        for offset, inner in _range_boxes(shape[1:], start - first * row, stop - first * row):
            yield (first, *offset), (1, *inner)
        return
    if start > first * row:
        yield from _range_boxes(shape, start, (first + 1) * row)
        first += 1
    rows = stop // row - first
    if rows:
        yield (first, *(0,) * (len(shape) - 1)), (rows, *shape[1:])
    if stop > (first + rows) * row:
        yield from _range_boxes(shape, (first + rows) * row, stop)


def copy(source: TensorSlice, values: np.ndarray, target: TensorSlice, out: np.ndarray) -> None:
    """Copies the common elements of two slices of one tensor, flat."""
    for source_box, target_box, lows, highs in _common(source, target):
        _view(target_box, out, lows, highs)[...] = _view(source_box, values, lows, highs)


def overlap(first: TensorSlice, second: TensorSlice) -> bool:
    """Whether two slices of one tensor have an element in common."""
    return next(_common(first, second), None) is not None


def _common(source: TensorSlice, target: TensorSlice) -> Iterator[tuple[Box, Box, list[int], list[int]]]:
    """Yields the pairs of boxes of two slices that overlap, and the bounds of the overlap."""
    target_boxes = boxes(target)
    for one in boxes(source):
        for other in target_boxes:
            lows = [max(a, b) for a, b in zip(one.offset, other.offset, strict=True)]
            ends = ([a + n for a, n in zip(box.offset, box.shape, strict=True)] for box in (one, other))
            highs = list(map(min, *ends))
            if all(low < high for low, high in zip(lows, highs, strict=True)):
                yield one, other, lows, highs


def _view(box: Box, flat: np.ndarray, lows: list[int], highs: list[int]) -> np.ndarray:
    whole = flat[box.position : box.position + math.prod(box.shape)].reshape(box.shape)
    # With the ellipsis, a single element is an array and not a number.
    return whole[(*(slice(low - o, high - o) for low, high, o in zip(lows, highs, box.offset, strict=True)), ...)]


def coverage_error(whole: Sequence[int], blocks: Mapping[tuple[Shape, Shape], np.ndarray]) -> str | None:
    """Returns why slices of a tensor do not hold each element exactly once; None if they do.

    The blocks must not overlap, and the ranges of each block must follow one another without a gap.

    Args:
        whole: the tensor's shape.
        blocks: by offset and shape of a block within the tensor, start and stop of its ranges, int64 [ranges, 2];
            a range is within its block and not empty.
    """
    for (offset, shape), ranges in blocks.items():
        where, size = f"of the block of shape {list(shape)} at {list(offset)}", math.prod(shape)
        ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
        # Where the next range should begin, and where it does; after the last one the block ends.
        ends = np.append(0, ranges[:, 1])
        begins = np.append(ranges[:, 0], size)
        for index in np.flatnonzero(begins != ends)[:1]:
            first, last = sorted((int(begins[index]), int(ends[index])))
            kind = "twice" if begins[index] < ends[index] else "nowhere"
            return f"elements {first} to {last} {where} are {kind}"
    if _any_overlap([block for block in blocks if math.prod(block[1])]):
        return "blocks overlap"
    held, size = sum(math.prod(shape) for _, shape in blocks), math.prod(whole)
    return None if held == size else f"only {held} of {size} elements are there"


def _any_overlap(blocks: list[tuple[Shape, Shape]]) -> bool:
    """Whether two of these blocks, none of them empty, have an element in common."""
    lows = np.array([offset for offset, _ in blocks], np.int64)
    highs = lows + np.array([shape for _, shape in blocks], np.int64)
    for index in range(len(blocks) - 1):
        apart = (highs[index] <= lows[index + 1 :]) | (highs[index + 1 :] <= lows[index])
        if not apart.any(axis=1).all():
            return True
    return False


def even_parts(pieces: Sequence[TensorSlice], ranks: int, rank: int) -> Iterator[tuple[int, int, int]]:
    """Divides the saving of slices among the ranks that hold all of them, in the same order: equal bytes for each rank.

    The slices are concatenated, and each rank saves one contiguous range of the result.

    Yields:
        Index of a slice, and start and stop of the part that the rank saves, for `TensorSlice.part`.
    """
    total = sum(piece.nbytes for piece in pieces)
    low, high = total * rank // ranks, total * (rank + 1) // ranks
    position = 0
    for index, piece in enumerate(pieces):
        width = DTYPES[piece.dtype].itemsize
        # The end of one rank's range and the beginning of the next one's are rounded alike.
        start, stop = (min(max(bound - position, 0) // width, piece.size) for bound in (low, high))
        if start < stop:
            yield index, start, stop
        position += piece.nbytes


def renamed(piece: TensorSlice, kind: str) -> TensorSlice:
    """Returns the same slice of the tensor `KIND/NAME`, given a slice of the tensor `NAME`."""
    return replace(piece, name=f"{kind}/{piece.name}")


class TensorReader(Protocol):
    """What restores a state: `tftrain.checkpoint.reader.Reader` is one."""

    tensors: Mapping[str, tuple[str, Shape]]
    """Dtype and shape of every whole tensor, by name."""

    def read(self, wanted: TensorSlice) -> np.ndarray:
        """Returns the elements of a slice; raises CheckpointError."""
