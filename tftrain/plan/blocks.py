"""The inventory of a part of a model: matrix products, memory-bound kernels, saved tensors, sums over ranks.

Both halves of the planner read the same inventory: memory adds up the saved tensors; time adds up products, kernels and
sums. Sizes are those of one rank and one micro-batch.
"""

import math
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
    share: float = 0.0  # the memory's bandwidth that it reaches, if more than other kernels do, as a share


class SavedTensor(NamedTuple):
    """A tensor of the forward pass that backward reads."""

    name: str
    size: float  # bytes
    core: bool = False  # whether it belongs to the attention core: selective checkpointing does not save it


class Inventory(NamedTuple):
    """The inventory of a block, of the embeddings before the blocks, or of the heads after them."""

    products: tuple[Product, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    entry: float = 0.0  # bytes of its input, the only tensor that full checkpointing saves
    sums: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # bytes over tensor parallel ranks: forward, backward
    weights: float = 0.0  # number of this rank's weights
    summands: float = 0.0  # bytes of temporaries beside the gradients at the end of backward, after all blocks


class BlockSizes(NamedTuple):
    """Bytes of the tensors of a block on one tensor parallel rank."""

    stream: float  # the residual stream: tokens x hidden
    stream_of_rank: float  # what a rank has of it: a shard with sequence parallelism
    query: float  # as many as of the context
    key: float  # as many as of the values
    wide: float  # a tensor of the feed-forward layer
    scores: float  # 0 with flash attention, which never stores them


def block_sizes(work: Workload) -> BlockSizes:
    """Returns the sizes of a block's tensors."""
    tokens, item, t, model = work.rows * work.seq, work.item, work.tp, work.model
    attention, stream = model.block.attention, tokens * model.width * item
    scores = 0.0 if work.core != "softmax" else work.rows * model.attention_heads / t * work.seq**2 * item
    query, key = (tokens * dense.outputs * item / t for dense in (attention.query, attention.key))
    return BlockSizes(stream, stream / work.stream_ranks, query, key, tokens * model.inner * item / t, scores)


def sums_of_block(work: Workload, stream: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the bytes of a block's sums over tensor parallel ranks, forward and backward.

    An all-gather and a reduce-scatter together count as a sum. Backward of sequence parallelism gathers the inputs of
    both halves again, each half a sum.
    """
    if work.tp == 1:
        return (), ()
    half = stream / 2
    return (stream, stream), (stream, stream, half, half) if work.sequence_parallel else (stream, stream)


def logit_rows(work: Workload) -> int:
    """Returns the rows of logits of a micro-batch: all tokens for a decoder, unless it gives vectors."""
    is_of_all = work.model.causal and (work.model.tied or work.model.output)
    return work.rows * (work.seq if is_of_all else work.predictions)


def products_of_heads(work: Workload) -> tuple[Product, ...]:
    """Returns the products after the blocks on one tensor parallel rank and one micro-batch."""
    batch, t = work.rows, work.tp
    return tuple(
        Product(name.replace("_", " "), batch * rows, layer.outputs // (t if layer.divided else 1), layer.inputs)
        for name, rows, layer in layers_of_heads(work.model, work.seq, work.predictions)
    )


def products_of_block(work: Workload, joined: bool) -> tuple[Product, ...]:
    """Returns the products of a block for a micro-batch; `joined`: queries, keys and values are one product."""
    attention, feed_forward = work.model.block.attention, work.model.block.feed_forward
    tokens, t = work.rows * work.seq, work.tp
    first = (attention.query, attention.key, attention.value)
    widths = [sum(each.outputs for each in first)] if joined else [each.outputs for each in first]
    batch = max(1, round(work.rows * attention.heads / t))
    output, down, width = attention.output, feed_forward.down, work.model.width
    # Flash attention skips the tiles that a window hides; the others compute whole matrices.
    keys = min(work.seq, math.ceil(work.model.keys(work.seq) / _TILE) * _TILE) if work.core != "softmax" else work.seq
    return (
        *[Product("queries, keys, values", tokens, outputs // t, width) for outputs in widths],
        Product("scores", work.seq, keys, attention.head_size, batch, core=True),
        Product("context", work.seq, attention.head_size, keys, batch, core=True),
        Product("attention output", tokens, output.outputs, output.inputs // t),
        *[Product("wide", tokens, each.outputs // t, each.inputs) for each in feed_forward.wide],
        Product("narrow", tokens, down.outputs, down.inputs // t),
    )
