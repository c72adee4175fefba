"""The inventories of a workload's model by its family, cached by the fields that they depend on."""

import functools
from typing import NamedTuple

from tftrain.plan import bert, decoder, encoder, gpt
from tftrain.plan.blocks import Part
from tftrain.plan.workload import Workload

FAMILIES = {"megatron": decoder, "encoder": encoder, "tftrain": bert, "tftrain_gpt": gpt}


class Parts(NamedTuple):
    """The inventories of one block, of the embeddings and of the heads."""

    block: Part
    embedding: Part
    head: Part


def parts(work: Workload) -> Parts:
    """Returns the inventories of one tensor parallel rank and one micro-batch."""
    return _parts(one_block(work))


@functools.lru_cache(maxsize=1 << 14)
def one_block(work: Workload) -> Workload:
    """Returns the workload with fixed values in the fields that its inventories do not depend on."""
    return work.replaced(
        dp=1,
        pp=1,
        schedule="1f1b",
        chunks=1,
        division=(),
        layers=1,
        global_batch=work.micro_batch,
        zero_stage=0,
        split_strategy="even",
        checkpoint_copy=False,
    )


@functools.lru_cache(maxsize=1 << 12)
def _parts(work: Workload) -> Parts:
    family = FAMILIES[work.family]
    return Parts(family.block(work), family.embedding(work), family.head(work))


def weights(work: Workload, stage: int = 0) -> float:
    """Returns the weights of a rank of a pipeline stage: its blocks, the embeddings and the heads.

    The first and the last stage both have the embeddings, since the logits are products with the table.
    """
    found, last = parts(work), work.pp - 1
    total = work.layers_of(stage) * found.block.weights
    if stage in (0, last):
        total += found.embedding.weights
    return total + (found.head.weights if stage == last else 0)
