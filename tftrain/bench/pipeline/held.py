"""How many micro-batches' activations the stages of a pipeline held at a time, as measured."""

from collections.abc import Sequence

from tftrain.schedules.activations import RELEASING
from tftrain.schedules.simulation import Event
from tftrain.schedules.table import Kind


def most_held(events: Sequence[Event], stages: int) -> list[int]:
    """Returns for each stage the most forward passes that had begun while their backward had not ended.

    Args:
        events: the computations of a step, with their times.
        stages: number of stages.
    """
    changes: list[list[tuple[float, int]]] = [[] for _ in range(stages)]
    for stage, action, begin, end in events:
        if action.kind is Kind.FORWARD:
            changes[stage].append((begin, 1))
        elif action.kind in RELEASING:
            changes[stage].append((end, -1))
    found = []
    for of_stage in changes:
        held, most = 0, 0
        for _, change in sorted(of_stage):
            held += change
            most = max(most, held)
        found.append(most)
    return found
