"""The inventories of a workload's model, cached by the fields that they depend on."""

import functools
from typing import NamedTuple

from tftrain.plan import decoder, encoder, own
from tftrain.plan.blocks import Part
from tftrain.plan.workload import Workload

# By the trainer.
INVENTORIES = {"megatron": decoder, "fsdp": decoder, "encoder": encoder, "tftrain": own}


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


@functools.lru_cache(maxsize=1 << 12)
def _parts(work: Workload) -> Parts:
    trainer = INVENTORIES[work.trainer]
    return Parts(trainer.block(work), trainer.embedding(work), trainer.head(work))


def weights(work: Workload, stage: int = 0) -> float:
    """Returns the weights of a rank of a pipeline stage: its blocks, the embeddings and the heads.

    If the output layer is tied, the first and the last stage both have the token embedding. Megatron-LM has all
    embeddings there.
    """
    model_parts, last = parts(work), work.pp - 1
    total = work.layers_of(stage) * model_parts.block.weights
    if stage == 0:
        total += model_parts.embedding.weights
    elif stage == last and work.model.tied:
        total += copied_weights(work, stage) or model_parts.embedding.weights
    return total + (model_parts.head.weights if stage == last else 0)


def copied_weights(work: Workload, stage: int) -> float:
    """Returns the weights of a stage whose state another one has: the token embedding of this project's last stage."""
    is_copy = work.trainer == "tftrain" and work.model.tied and 0 < stage == work.pp - 1
    return work.model.word.size / work.tp if is_copy else 0.0
