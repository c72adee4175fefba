"""The inventories of a workload's block, embeddings and heads, cached by the fields that they depend on."""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tftrain.architecture.architecture import GPU_UNIT, rows_of_chunk
from tftrain.host.units import ITEM_BYTES
from tftrain.plan import blocks
from tftrain.plan.blocks import Inventory, Kernel, SavedTensor
from tftrain.plan.kernels import kernels_of_block, kernels_of_embedding, kernels_of_head
from tftrain.plan.saved import PLAIN_BYTES, saved_by_block
from tftrain.plan.workload import Workload

Result = TypeVar("Result")
CHUNK_COPIES = 4  # causal logits of a chunk in fp32: logits, differences, exponentials, gradients


class Parts(NamedTuple):
    """The inventories of one block, of the embeddings and of the heads."""

    block: Inventory
    embedding: Inventory
    head: Inventory


@functools.lru_cache(maxsize=1 << 14, typed=True)
def one_block(work: Workload) -> Workload:
    """Returns the workload with fixed values in the fields that its inventories do not depend on."""
    return work._replace(
        dp=1,
        pp=1,
        schedule="1f1b",
        chunks=1,
        division=(),
        global_batch=work.micro_batch,
        zero_stage=0,
        split_strategy="even",
        checkpoint_copies=0,
    )


def by_block(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a function of a workload whose results are those of all workloads that `one_block` makes equal."""
    cached = functools.lru_cache(maxsize=1 << 14, typed=True)(function)
    return functools.wraps(function)(lambda work, *others: cached(one_block(work), *others))


def wire_bytes(work: Workload) -> int:
    """Returns the bytes of a number of a gradient between data parallel ranks."""
    own = "bf16" if (work.accumulation or work.precision) == "bf16" else "fp32"
    return ITEM_BYTES[own if work.wire == "own" else work.wire]


@functools.singledispatch
def make_parts(work: Workload) -> Parts:
    """Returns the inventories of this trainer; `tftrain.bench.published` registers those of other software."""
    last = head(work)
    return Parts(
        _accumulated(block(work), work),
        _accumulated(embedding(work), work),
        last if work.model.causal else _accumulated(last, work),
    )


# The inventories of one tensor parallel rank and one micro-batch.
parts = by_block(make_parts)


def block(work: Workload) -> Inventory:
    """Returns the inventory of one block on one tensor parallel rank."""
    sizes = blocks.block_sizes(work)
    return Inventory(
        blocks.products_of_block(work, joined=False),
        kernels_of_block(work),
        saved_by_block(work),
        sizes.stream_of_rank,
        blocks.sums_of_block(work, sizes.stream),
        work.model.block_weights.of_rank(work.tp),
    )


# A weight of the tied table: what the loop over micro-batches held on CPUs, with BERT base and with XLM-R base.
LOOP_TABLE_BYTES = 12


def embedding(work: Workload) -> Inventory:
    """Returns the inventory of the embeddings; a tied table's gradient sums those of logits and look-ups."""
    stream = work.rows * work.seq * work.model.width * work.item
    masks = (SavedTensor("dropout mask", stream),) if work.hidden_dropout else ()
    # The gradient of look-ups is a sum in fp32, which is the gradient or is cast to it; XLA's programs keep no cast.
    widened = PLAIN_BYTES * (work.item != PLAIN_BYTES)
    summands = 2 * work.item + widened * (not work.gpu) if work.model.tied else widened
    if work.accumulation and work.model.tied and not work.gpu:
        summands += LOOP_TABLE_BYTES
    return Inventory(
        kernels=kernels_of_embedding(work),
        saved=(SavedTensor("input of the norm", stream), *masks),
        entry=stream,
        sums=((stream,), ()) if work.tp > 1 else ((), ()),
        weights=work.model.embedding_weights.of_rank(work.tp),
        summands=summands * work.model.word.size / work.tp,
    )


def head(work: Workload) -> Inventory:
    """Returns the inventory after the blocks: the logits of the masked words, or of all; in chunks of rows."""
    causal, item, words, width = work.model.causal, work.item, work.model.vocab / work.tp, work.model.width
    rows = blocks.logit_rows(work)
    picked, chunk = rows * width * item, rows_of_chunk(rows, round(words), width, work.gpu)
    table_sum = SavedTensor("sum of the table's gradient", PLAIN_BYTES * float(round(words)) * width)
    of_chunk = 4.0 * CHUNK_COPIES * chunk * words if causal else (item + 8.0) * chunk * round(words)
    if work.compiled:
        of_chunk = _compiled_logits(chunk, round(words), width, item, is_one=chunk >= rows)
    if causal:
        saved = [
            SavedTensor("input of the last norm", picked / work.stream_ranks),
            SavedTensor("input of the output layer", picked),
            SavedTensor("logits of a chunk", of_chunk),
            table_sum._replace(size=4.0 * words * width if chunk < rows else 0.0),
        ]
        small = ((4.0 * rows,) * 4, (picked,))
    else:
        logits = SavedTensor("logits and probabilities of a chunk", of_chunk)
        saved = [SavedTensor("masked positions", 4 * picked), logits, *([table_sum] if chunk < rows else [])]
        small = ((4.0 * rows,) * 2, (picked,))
    return Inventory(
        blocks.products_of_heads(work),
        kernels_of_head(work),
        tuple(saved) if rows else (),
        picked,
        small if work.tp > 1 else ((), ()),
        work.model.output_weights.of_rank(work.tp),
    )


def _compiled_logits(rows: int, words: int, width: int, item: int, is_one: bool) -> float:
    """Returns the bytes of a chunk of logits in a program that XLA compiles for a GPU, see `tools/gpu_memory.py`.

    There are exponentials in fp32, and the logits or their gradients. Products in 16 bits also need the table with a
    multiple of 8 words. If there are several chunks, the gradient of the table from one chunk is as large.
    """
    logits = float(rows) * words
    padded = float(words) * width * item if item == 2 and words % GPU_UNIT else 0.0
    return max((4 + item) * logits, item * logits + (0.0 if is_one else padded)) + padded


def _accumulated(part: Inventory, work: Workload) -> Inventory:
    """Adds the traffic of accumulation: it reads a gradient and the sum, and writes the sum."""
    if not work.accumulation:
        return part
    moved = part.weights * (work.item + 2 * ITEM_BYTES[work.accumulation])
    return part._replace(kernels=(*part.kernels, Kernel("sums over micro-batches", 0, moved, (0, 0))))


def weights(work: Workload, stage: int = 0) -> float:
    """Returns the weights of a rank of a pipeline stage: its blocks, the embeddings and the heads.

    If the output layer is tied, the first and the last stage both have the token embedding. In Megatron-LM, the last
    stage has all embeddings too.
    """
    model_parts, last = parts(work), work.pp - 1
    total = work.layers_of(stage) * model_parts.block.weights
    if stage == 0:
        total += model_parts.embedding.weights
    elif stage == last and work.model.tied:
        total += copied_weights(work, stage) or model_parts.embedding.weights
    return total + (model_parts.head.weights if stage == last else 0)


def copied_weights(work: Workload, stage: int) -> float:
    """Returns the weights of a stage without a state of their own: the tied token embedding of the last stage."""
    is_copy = work.copies_table and work.model.tied and 0 < stage == work.pp - 1
    return work.model.word.size / work.tp if is_copy else 0.0
