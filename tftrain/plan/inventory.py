"""The parts of a workload's model, made once for all that does not change them."""

import functools
from typing import NamedTuple

from tftrain.plan import bert, decoder, encoder
from tftrain.plan.blocks import Part
from tftrain.plan.workload import Workload

FAMILIES = {"megatron": decoder, "encoder": encoder, "tftrain": bert}


class Parts(NamedTuple):
    """One block, and what is before and behind the blocks."""

    block: Part
    embedding: Part
    head: Part


def parts(work: Workload) -> Parts:
    """Returns the inventories of one tensor parallel rank and one micro-batch."""
    return _parts(one_block(work))


@functools.lru_cache(maxsize=1 << 14)
def one_block(work: Workload) -> Workload:
    """Returns the workload with one value of all that its parts do not depend on."""
    return work.replaced(
        dp=1, pp=1, layers=1, global_batch=work.micro_batch, zero_stage=0, split_strategy="even", checkpoint_copy=False
    )


@functools.lru_cache(maxsize=1 << 12)
def _parts(work: Workload) -> Parts:
    family = FAMILIES[work.family]
    return Parts(family.block(work), family.embedding(work), family.head(work))


def weights(work: Workload, first: bool = True, last: bool = False) -> float:
    """Returns the weights of a rank of a pipeline stage: the blocks', and those of what is before or behind them.

    Both ends have the embedding, since the logits are products with it.
    """
    found = parts(work)
    total = work.layers / work.pp * found.block.weights
    if first or last:
        total += found.embedding.weights
    return total + (found.head.weights if last else 0)
