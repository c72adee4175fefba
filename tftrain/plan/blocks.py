"""The inventory of a part of a model: matrix products, memory-bound kernels, saved tensors, sums over ranks.

Both halves of the planner read the same inventory: memory adds up the saved tensors; time adds up products, kernels and
sums. Sizes are those of one rank and one micro-batch.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from tftrain.architecture.flops import layers_of_heads
from tftrain.plan.workload import Workload

_TILE = 64  # keys


class Product(NamedTuple):
    """`batch` matrix products [m, k] x [k, n]; backward computes two, each with the same number of operations."""

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    core: bool = False  # whether it belongs to the attention core, which selective checkpointing recomputes

    @property
    def flops(self) -> float:
        """Floating point operations of the forward pass."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def passes(self) -> tuple[tuple[int, int, int], ...]:
        """Sizes (m, n, k) of the forward product and of the gradients of its two operands."""
        return (self.m, self.n, self.k), (self.m, self.k, self.n), (self.k, self.n, self.m)


class Kernel(NamedTuple):
    """A memory-bound operation: bytes read and written, and kernel launches, forward and backward."""

    name: str
    forward: float
    backward: float
    launches: tuple[int, int] = (1, 1)
    core: bool = False


class SavedTensor(NamedTuple):
    """A tensor of the forward pass that backward reads."""

    name: str
    size: float  # bytes
    core: bool = False  # whether it belongs to the attention core: selective checkpointing does not save it


class Part(NamedTuple):
    """The inventory of a block, of the embeddings before the blocks, or of the heads after them."""

    products: tuple[Product, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    entry: float = 0.0  # bytes of its input, the only tensor that full checkpointing saves
    sums: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # bytes over tensor parallel ranks: forward, backward
    weights: float = 0.0  # number of this rank's weights
    summands: float = 0.0  # bytes of temporaries beside the gradients at the end of backward, after all blocks


def total(numbers: Iterable[float]) -> float:
    """Returns the sum, as a float."""
    return float(sum(numbers))


def query_key_value_bytes(work: Workload) -> tuple[float, float]:
    """Returns the bytes of a rank's queries, and of its keys, as many as of its values, in a block."""
    tokens, item = work.rows * work.seq, work.item
    attention = work.model.block.attention
    return tokens * attention.query.outputs * item / work.tp, tokens * attention.key.outputs * item / work.tp


def products_of_heads(work: Workload) -> tuple[Product, ...]:
    """Returns the products after the blocks on one tensor parallel rank and one micro-batch."""
    batch, t = work.rows, work.tp
    return tuple(
        Product(name.replace("_", " "), batch * rows, layer.outputs // (t if layer.divided else 1), layer.inputs)
        for name, rows, layer in layers_of_heads(work.model, work.seq, work.predictions)
    )


def products_of_block(work: Workload, joined: bool) -> tuple[Product, ...]:
    """Returns the products of one block on one tensor parallel rank and one micro-batch.

    `joined`: queries, keys and values are one product.
    """
    attention, feed_forward = work.model.block.attention, work.model.block.feed_forward
    tokens, t = work.rows * work.seq, work.tp
    first = (attention.query, attention.key, attention.value)
    widths = [sum(each.outputs for each in first)] if joined else [each.outputs for each in first]
    batch = max(1, round(work.rows * attention.heads / t))
    output, down, width = attention.output, feed_forward.down, work.model.width
    # Flash attention skips the tiles that a window hides; the others compute whole matrices.
    keys = min(work.seq, math.ceil(work.model.keys(work.seq) / _TILE) * _TILE) if "flash" in work.fused else work.seq
    return (
        *[Product("queries, keys, values", tokens, outputs // t, width) for outputs in widths],
        Product("scores", work.seq, keys, attention.head_size, batch, core=True),
        Product("context", work.seq, attention.head_size, keys, batch, core=True),
        Product("attention output", tokens, output.outputs, output.inputs // t),
        *[Product("wide", tokens, each.outputs // t, each.inputs) for each in feed_forward.wide],
        Product("narrow", tokens, down.outputs, down.inputs // t),
    )
