"""The order in which the actions of a table can happen, by the engine's rules, and the time that they take.

Every action begins once its stage is free and its input has arrived. A transfer begins when the tensor exists, its
receive is posted and the previous transfer between the two stages in the same direction has ended.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tftrain.schedules.table import TRANSFERS, Action, ActionKind, Schedule, input_of

PerChunk = tuple[tuple[float, ...], ...]  # [stage][chunk]


class ScheduleError(ValueError):
    """A table breaks a rule; the message names stage, tick and action."""


class Step(NamedTuple):
    """A computation, or a transfer from its send to the computation that needs it, as the receive."""

    stage: int
    action: Action
    # Numbers of the steps that end before it begins, 0 for none. Of a computation: the stage's previous computation and
    # its input's transfer. Of a transfer: the computation before the send, the one before the place of the receive, and
    # the previous transfer from the same stage to the same stage.
    after: tuple[int, int, int]


def steps(table: Schedule) -> list[Step]:
    """Returns all computations and transfers of a table, each after those that it waits for, numbered from 1.

    Raises a ScheduleError if some computation waits for ever.
    """
    count, steps = len(table.stages), []
    ticks, computed = [0] * count, [0] * count
    # By name, the transfers that one of both stages has come to: its action, and the computation before it.
    halves: dict[str, tuple[Action, int]] = {}
    arrived: dict[str, int] = {}
    links: dict[tuple[int, int], int] = {}
    ready = list(reversed(range(count)))
    while ready:
        stage = ready.pop()
        actions = table.stages[stage]
        while ticks[stage] < len(actions):
            action = actions[ticks[stage]]
            if action.kind in TRANSFERS:
                sends = action.kind is ActionKind.SEND
                sender, receiver = (stage, action.peer) if sends else (action.peer, stage)
                if action.name not in halves:
                    halves[action.name] = action, computed[stage]
                else:
                    other, computed_there = halves.pop(action.name)
                    after = (computed_there, computed[stage], links.get((sender, receiver), 0))
                    steps.append(Step(receiver, other if sends else action, after))
                    links[sender, receiver] = arrived[action.name] = len(steps)
                    if sends:
                        ready.append(receiver)
            else:
                source, transfer = input_of(action, stage, count, table.chunks), 0
                if source and source.peer != stage:
                    if source.name not in arrived:
                        break
                    transfer = arrived.pop(source.name)
                steps.append(Step(stage, action, (computed[stage], transfer, 0)))
                computed[stage] = len(steps)
            ticks[stage] += 1
    for stage, tick in enumerate(ticks):
        if tick < len(table.stages[stage]):
            where = f"stage {stage}, tick {tick}, {table.stages[stage][tick]}"
            raise ScheduleError(f"{where}: waits for ever for its input: stages wait for each other")
    return steps


class Durations(NamedTuple):
    """Durations of the actions of one micro-batch, in any unit of time."""

    forward: PerChunk
    backward_inputs: PerChunk
    backward_weights: PerChunk
    transfer: float = 0.0  # an activation, or its gradient, between two stages

    def of(self, kind: ActionKind) -> PerChunk:
        """Returns the durations of computations of a kind; backward for inputs and weights together takes the sum."""
        if kind is ActionKind.BACKWARD:
            both = zip(self.backward_inputs, self.backward_weights, strict=True)
            return tuple(tuple(map(sum, zip(*stage, strict=True))) for stage in both)
        return getattr(self, kind.name.lower())


def even_durations(stages: Sequence[tuple[float, float, float]], chunks: int = 1, transfer: float = 0.0) -> Durations:
    """Returns durations of stages whose chunks are equal.

    `stages` has for each stage the durations of forward, of backward for inputs and of backward for weights, each over
    all its chunks.
    """
    divided = [[(seconds / chunks,) * chunks for seconds in stage] for stage in stages]
    return Durations(*map(tuple, zip(*divided, strict=True)), transfer)


class TimedAction(NamedTuple):
    """An action as planned or as measured: the stage, the action, and when it begins and ends."""

    stage: int
    action: Action
    start: float
    end: float


def simulate(table: Schedule, durations: Durations) -> list[TimedAction]:
    """Returns when every computation and every transfer of a table begins and ends; a transfer is its receive.

    Raises a ScheduleError if the stages wait for each other.
    """
    of_kind = {kind: durations.of(kind) for kind in ActionKind if kind not in TRANSFERS}
    ends, events = [0.0], []
    for stage, action, after in steps(table):
        start = max(ends[number] for number in after)
        is_transfer = action.kind is ActionKind.RECEIVE
        ends.append(start + (durations.transfer if is_transfer else of_kind[action.kind][stage][action.chunk]))
        events.append(TimedAction(stage, action, start, ends[-1]))
    return events


def computations(events: Sequence[TimedAction]) -> list[TimedAction]:
    """Returns the events that are no transfers."""
    return [event for event in events if event.action.kind not in TRANSFERS]


def step_time(events: Sequence[TimedAction]) -> float:
    """Returns the time from the first begin to the last end of the computations."""
    computed = computations(events)
    return max(event.end for event in computed) - min(event.start for event in computed)


def idle_times(events: Sequence[TimedAction]) -> list[float]:
    """Returns for each stage the time of the step in which it computes nothing."""
    total = step_time(events)
    busy = [0.0] * (1 + max(event.stage for event in events))
    for event in computations(events):
        busy[event.stage] += event.end - event.start
    return [total - seconds for seconds in busy]


def bubble_share(events: Sequence[TimedAction]) -> float:
    """Returns the share of all stages' time in which they compute nothing, from 0 to 1."""
    idle = idle_times(events)
    return sum(idle) / (len(idle) * step_time(events))
