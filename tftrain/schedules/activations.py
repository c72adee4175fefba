"""How many micro-batches' activations a stage holds at a time: from the forward pass until backward has used them."""

from collections.abc import Sequence
from typing import NamedTuple

from tftrain.schedules.table import Action, ActionKind

RELEASING = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHTS)


class Peak(NamedTuple):
    """The most activations that a stage holds at a time, each those of one micro-batch and one chunk."""

    total: int
    of_chunks: tuple[int, ...]  # each chunk's, when the stage holds the most


def peak(actions: Sequence[Action], chunks: int) -> Peak:
    """Returns the peak of a stage with these actions, in order; sends and receives may be missing."""
    held, total, most = [0] * chunks, 0, Peak(0, (0,) * chunks)
    for action in actions:
        change = (action.kind is ActionKind.FORWARD) - (action.kind in RELEASING)
        held[action.chunk] += change
        total += change
        if total > most.total:
            most = Peak(total, tuple(held))
    return most
