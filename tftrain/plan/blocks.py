"""What a part of a model is made of: matrix products, kernels bound by memory, tensors kept, sums over ranks.

One list of these drives both halves of the planner: memory adds up what is kept, time adds up what is computed, moved
and launched. Sizes are those of one rank and one micro-batch.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Product(NamedTuple):
    """`batch` matrix products [m, k] x [k, n]; backward has two of the same number of operations.

    Attributes:
        core: it belongs to the attention core, which selective checkpointing computes again.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    core: bool = False

    @property
    def flops(self) -> float:
        """Operations of the forward pass."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def passes(self) -> tuple[tuple[int, int, int], ...]:
        """Sizes (m, n, k) of the forward product and of the gradients of its two operands."""
        return (self.m, self.n, self.k), (self.m, self.k, self.n), (self.k, self.n, self.m)


class Kernel(NamedTuple):
    """An operation that moves data: bytes read and written, and launches of the device, forward and backward."""

    name: str
    forward: float
    backward: float
    launches: tuple[int, int] = (1, 1)
    core: bool = False


class Kept(NamedTuple):
    """A tensor that backward needs.

    Attributes:
        size: bytes.
        core: it belongs to the attention core, and selective checkpointing does not keep it.
    """

    name: str
    size: float
    core: bool = False


class Part(NamedTuple):
    """A block, or what is before or behind the blocks.

    Attributes:
        products, kernels, kept: its inventory.
        entry: bytes of its input, which is all that whole checkpointing keeps.
        sums: bytes of each sum over the tensor parallel ranks: forward, backward.
        weights: numbers, of this rank.
        summands: bytes that backward holds beside gradients when it is through with the blocks.
    """

    products: tuple[Product, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    kept: tuple[Kept, ...] = ()
    entry: float = 0.0
    sums: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    weights: float = 0.0
    summands: float = 0.0

    def kept_bytes(self, core: bool = True) -> float:
        """Returns the bytes kept for backward, with or without those of the attention core."""
        return total(tensor.size for tensor in self.kept if core or not tensor.core)


def total(numbers: Iterable[float]) -> float:
    """Returns the sum, as a float."""
    return float(sum(numbers))
