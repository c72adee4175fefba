"""A piece of a tensor: its place in the whole, whoever holds it, and what two pieces have in common.

Ranks divide state in two ways, one inside the other: tensor parallel ranks hold rectangular blocks of a tensor, and of
a block laid out row by row, data parallel ranks hold stretches. A piece says both. What it covers is a few boxes, each
contiguous in the piece: at most a beginning and an end for each dimension, and a middle. Pieces of different layouts
meet box by box.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# By the names that safetensors gives them; what a training run keeps has no other.
DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "I64": np.dtype("<i8")}


@dataclass(frozen=True)
class Piece:
    """Which elements of which tensor.

    Attributes:
        name: the tensor's global name, such as `master/layer_00/attention/query/kernel`.
        whole: the shape of the whole tensor.
        dtype: a key of `DTYPES`.
        offset, shape: of a block of the whole; a number for each dimension.
        start, stop: the stretch [start, stop) of the block's elements in row-major order.
    """

    name: str
    whole: tuple[int, ...]
    dtype: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    stop: int

    @staticmethod
    def block(
        name: str, whole: Sequence[int], dtype: str, offset: Sequence[int] | None = None, shape=None, stretch=None
    ) -> "Piece":
        """Returns a piece: the whole tensor, or a block of it if one is given, or a stretch of that."""
        whole = tuple(whole)
        offset = (0,) * len(whole) if offset is None else tuple(offset)
        shape = whole if shape is None else tuple(shape)
        start, stop = (0, math.prod(shape)) if stretch is None else stretch
        return Piece(name, whole, dtype, offset, shape, start, stop)

    @property
    def size(self) -> int:
        """Elements."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * DTYPES[self.dtype].itemsize

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The block's shape if the piece is all of it, else flat."""
        return self.shape if self.size == math.prod(self.shape) else (self.size,)

    def part(self, start: int, stop: int) -> "Piece":
        """Returns a stretch of this piece; `start` and `stop` count from its own beginning."""
        return Piece(self.name, self.whole, self.dtype, self.offset, self.shape, self.start + start, self.start + stop)


class Box(NamedTuple):
    """A part of a piece that is a block of the whole tensor, and contiguous in the piece.

    Attributes:
        offset, shape: of the block.
        position: of its first element, from the piece's beginning.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    position: int


def boxes(piece: Piece) -> list[Box]:
    """Returns what a piece covers, in the order of its elements, without empty boxes."""
    found, position = [], 0
    for offset, shape in _stretch(piece.shape, piece.start, piece.stop):
        found.append(Box(tuple(a + b for a, b in zip(piece.offset, offset, strict=True)), shape, position))
        position += math.prod(shape)
    return found


def _stretch(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields offset and shape of the boxes of a stretch of a block of this shape."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = start // row, (stop - 1) // row
    if first == last:
        for offset, inner in _stretch(shape[1:], start - first * row, stop - first * row):
            yield (first, *offset), (1, *inner)
        return
    if start > first * row:
        yield from _stretch(shape, start, (first + 1) * row)
        first += 1
    rows = stop // row - first
    if rows:
        yield (first, *(0,) * (len(shape) - 1)), (rows, *shape[1:])
    if stop > (first + rows) * row:
        yield from _stretch(shape, (first + rows) * row, stop)


def copy(source: Piece, values: np.ndarray, target: Piece, out: np.ndarray) -> int:
    """Copies what two pieces of one tensor have in common.

    Args:
        source, target: the pieces.
        values: flat, the elements of `source`.
        out: flat, those of `target`; of them, the common ones are written.

    Returns:
        How many elements were copied.
    """
    copied = 0
    for there, here, lows, highs in _common(source, target):
        _view(here, out, lows, highs)[...] = _view(there, values, lows, highs)
        copied += math.prod(high - low for low, high in zip(lows, highs, strict=True))
    return copied


def meet(first: Piece, second: Piece) -> bool:
    """Whether two pieces of one tensor have an element in common."""
    return any(True for _ in _common(first, second))


def _common(source: Piece, target: Piece) -> Iterator[tuple[Box, Box, list[int], list[int]]]:
    """Yields the pairs of boxes of two pieces that overlap, and the bounds of what they have in common."""
    target_boxes = boxes(target)
    for there in boxes(source):
        for here in target_boxes:
            lows = [max(a, b) for a, b in zip(there.offset, here.offset, strict=True)]
            highs = [
                min(a + n, b + m) for a, n, b, m in zip(there.offset, there.shape, here.offset, here.shape, strict=True)
            ]
            if all(low < high for low, high in zip(lows, highs, strict=True)):
                yield there, here, lows, highs


def _view(box: Box, flat: np.ndarray, lows: list[int], highs: list[int]) -> np.ndarray:
    whole = flat[box.position : box.position + math.prod(box.shape)].reshape(box.shape)
    # With the dots, a single element is an array, too, and not a number.
    return whole[(*(slice(low - o, high - o) for low, high, o in zip(lows, highs, box.offset, strict=True)), ...)]


def coverage_error(pieces: Sequence[Piece]) -> str | None:
    """Says why pieces of one tensor do not hold each of its elements exactly once; None if they do.

    They must come from blocks that do not overlap, each cut into stretches that follow one another without a gap.

    Args:
        pieces: of a tensor; each block lies within the whole, and each stretch within its block.
    """
    blocks: dict[tuple, list[Piece]] = {}
    for piece in pieces:
        if piece.size:
            blocks.setdefault((piece.offset, piece.shape), []).append(piece)
    for (offset, shape), stretches in blocks.items():
        end = 0
        for piece in sorted(stretches, key=lambda piece: piece.start):
            if piece.start != end:
                kind = "twice" if piece.start < end else "nowhere"
                elements = f"elements {min(piece.start, end)} to {max(piece.start, end)}"
                return f"{elements} of the block of shape {list(shape)} at {list(offset)} are {kind}"
            end = piece.stop
        if end != math.prod(shape):
            return f"elements from {end} on of the block of shape {list(shape)} at {list(offset)} are nowhere"
    if _any_overlap(list(blocks)):
        return "blocks overlap"
    held, size = sum(math.prod(shape) for _, shape in blocks), math.prod(pieces[0].whole)
    return None if held == size else f"only {held} of {size} elements are there"


def _any_overlap(blocks: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Whether two of these blocks, none of them empty, have an element in common."""
    if len(blocks) < 2:
        return False
    lows = np.array([offset for offset, _ in blocks], np.int64)
    highs = lows + np.array([shape for _, shape in blocks], np.int64)
    for index in range(len(blocks) - 1):
        apart = (highs[index] <= lows[index + 1 :]) | (highs[index + 1 :] <= lows[index])
        if not apart.any(axis=1).all():
            return True
    return False


def even_parts(pieces: Sequence[Piece], ranks: int, rank: int) -> Iterator[tuple[int, int, int]]:
    """Shares out pieces that several ranks hold alike: laid end to end, each rank has one of equal stretches of bytes.

    Args:
        pieces: in the same order on every rank.
        ranks, rank: how many share them, and which of them asks.

    Yields:
        Index, start and stop of each part of a piece that falls to the rank, for `Piece.part`.
    """
    total = sum(piece.nbytes for piece in pieces)
    low, high = total * rank // ranks, total * (rank + 1) // ranks
    position = 0
    for index, piece in enumerate(pieces):
        width = DTYPES[piece.dtype].itemsize
        # Rounded alike for the end of one rank's stretch and the beginning of the next one's.
        start, stop = (min(max(bound - position, 0) // width, piece.size) for bound in (low, high))
        if start < stop:
            yield index, start, stop
        position += piece.nbytes
