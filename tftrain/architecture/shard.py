"""The shard of a variable that one tensor parallel rank holds: a block of the whole tensor."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

Array = TypeVar("Array")


class VariableShard(NamedTuple):
    """A block of a named tensor."""

    name: str  # global name of the variable
    whole: tuple[int, ...]  # shape of the whole tensor
    offset: tuple[int, ...]  # where the block begins in the whole
    shape: tuple[int, ...]  # the block's
    replica: int = 0  # number of this copy among the ranks that hold the same block

    @property
    def size(self) -> int:
        """Number of elements of the block."""
        return math.prod(self.shape)

    @property
    def is_divided(self) -> bool:
        """Whether the block is not the whole tensor."""
        return self.shape != self.whole

    def take(self, whole: Array) -> Array:
        """Returns the block of the whole tensor, a NumPy array or a tf.Tensor."""
        return whole[tuple(slice(low, low + size) for low, size in zip(self.offset, self.shape, strict=True))]


def whole_shard(name: str, shape: Sequence[int]) -> VariableShard:
    """Returns the shard that is the whole tensor."""
    return VariableShard(name, tuple(shape), (0,) * len(shape), tuple(shape))


def shard_of(name: str, shape: Sequence[int], axis: int | None, unit: int, rank: int, ranks: int) -> VariableShard:
    """Returns what a tensor parallel rank holds of a variable.

    Args:
        name, shape: those of the whole variable.
        axis: the axis that tensor parallel ranks partition; None: every rank has the whole.
        unit: number of neighbouring elements along the axis that stay on one rank.
        rank, ranks: index and number of the tensor parallel ranks.
    """
    offset, block = [0] * len(shape), list(shape)
    if axis is not None:
        begin, end = even_bounds(shape[axis], ranks, unit)[rank : rank + 2]
        offset[axis], block[axis] = begin, end - begin
    return VariableShard(name, tuple(shape), tuple(offset), tuple(block), rank if axis is None else 0)


def even_bounds(size: int, ranks: int, unit: int = 1) -> list[int]:
    """Partitions an axis over ranks as evenly as its size permits.

    Neighbouring elements, such as those of a head, stay together in units of `unit` elements; it is a divisor of
    `size`. Returns ascending bounds, one more than ranks; rank r holds [bounds[r], bounds[r + 1]). The numbers of units
    of two ranks differ by one at most.
    """
    units = size // unit
    return [units * rank // ranks * unit for rank in range(ranks + 1)]
