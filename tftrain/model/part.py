"""The part of a model that one rank holds: all of it, or the layers of its pipeline stages."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class ModelPart(NamedTuple):
    """Some of the layers of a model."""

    blocks: tuple[int, ...]  # indices of the transformer blocks, ascending
    embedding: bool = True  # whether the part maps token ids to vectors
    heads: bool = True  # whether the part computes predictions and losses


def joined(parts: Iterable[ModelPart]) -> ModelPart:
    """Returns the part that holds the layers of several parts."""
    parts = list(parts)
    blocks = sorted(block for part in parts for block in part.blocks)
    return ModelPart(tuple(blocks), any(part.embedding for part in parts), any(part.heads for part in parts))


def parts_of_stage(division: Sequence[int], stage: int, stages: int) -> list[ModelPart]:
    """Returns the parts of a pipeline stage, counted from 0: one, or several if the schedule is interleaved.

    `division` has the numbers of blocks of all parts, in the order of the layers. Part c of a stage is number
    c * stages + stage of them.
    """
    ends = list(itertools.accumulate(division))
    return [
        ModelPart(tuple(range(ends[number] - division[number], ends[number])), number == 0, number == len(division) - 1)
        for number in range(stage, len(division), stages)
    ]
