"""The time of a table: every action begins once its stage is free and its input has arrived.

A transfer begins when the tensor exists, its receive is posted and the previous transfer between the two stages in the
same direction has ended.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tftrain.schedules.execution import steps
from tftrain.schedules.table import TRANSFERS, Action, Kind, Table

PerChunk = tuple[tuple[float, ...], ...]  # [stage][chunk]


class Durations(NamedTuple):
    """Durations of the actions of one micro-batch, in any unit of time."""

    forward: PerChunk
    backward_inputs: PerChunk
    backward_weights: PerChunk
    transfer: float = 0.0  # of an activation, or of its gradient, between two stages

    def of(self, kind: Kind) -> PerChunk:
        """Returns the durations of computations of a kind; backward for inputs and weights together takes the sum."""
        if kind is Kind.BACKWARD:
            both = zip(self.backward_inputs, self.backward_weights, strict=True)
            return tuple(tuple(map(sum, zip(*stage, strict=True))) for stage in both)
        return getattr(self, kind.name.lower())


def even_durations(stages: Sequence[tuple[float, float, float]], chunks: int = 1, transfer: float = 0.0) -> Durations:
    """Returns durations of stages whose chunks are equal.

    `stages` has for each stage the duration of forward, of backward for inputs and of backward for weights, over all
    its chunks.
    """
    divided = [[(seconds / chunks,) * chunks for seconds in stage] for stage in stages]
    return Durations(*map(tuple, zip(*divided, strict=True)), transfer)


class Event(NamedTuple):
    """An action as planned or as measured: the stage, the action, and when it begins and ends."""

    stage: int
    action: Action
    start: float
    end: float


def simulate(table: Table, durations: Durations) -> list[Event]:
    """Returns when every computation and every transfer of a table begins and ends; a transfer is its receive.

    Raises:
        ScheduleError: the stages wait for each other.
    """
    of_kind = {kind: durations.of(kind) for kind in Kind if kind not in TRANSFERS}
    ends, found = [0.0], []
    for stage, action, after in steps(table):
        start = max(ends[number] for number in after)
        is_transfer = action.kind is Kind.RECEIVE
        ends.append(start + (durations.transfer if is_transfer else of_kind[action.kind][stage][action.chunk]))
        found.append(Event(stage, action, start, ends[-1]))
    return found


def computations(events: Sequence[Event]) -> list[Event]:
    """Returns the events that are no transfers."""
    return [event for event in events if event.action.kind not in TRANSFERS]


def step_time(events: Sequence[Event]) -> float:
    """Returns the time from the first begin to the last end of the computations."""
    computed = computations(events)
    return max(event.end for event in computed) - min(event.start for event in computed)


def idle_times(events: Sequence[Event]) -> list[float]:
    """Returns for each stage the time of the step in which it computes nothing."""
    total = step_time(events)
    busy = [0.0] * (1 + max(event.stage for event in events))
    for event in computations(events):
        busy[event.stage] += event.end - event.start
    return [total - seconds for seconds in busy]


def bubble_share(events: Sequence[Event]) -> float:
    """Returns the share of all stages' time in which they compute nothing, from 0 to 1."""
    idle = idle_times(events)
    return sum(idle) / (len(idle) * step_time(events))
