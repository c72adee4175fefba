"""Proves that a table of `tftrain.schedules` is complete, in order, free of deadlocks and within its memory.

An engine that runs a table that passes computes every micro-batch once, and no stage waits for ever.
"""

import itertools
from collections import defaultdict

from tftrain.schedules.activations import RELEASING
from tftrain.schedules.simulation import ScheduleError, steps
from tftrain.schedules.table import TRANSFERS, Action, Schedule, input_of, output_of
from tftrain.schedules.table import ActionKind as Kind

BACKWARDS, HALVES = (
    (Kind.BACKWARD, Kind.BACKWARD_INPUTS),
    (Kind.BACKWARD_INPUTS, Kind.BACKWARD_WEIGHTS),
)
# What a stage computes before an action, of the same micro-batch and chunk.
BEFORE = {
    Kind.BACKWARD: Kind.FORWARD,
    Kind.BACKWARD_INPUTS: Kind.FORWARD,
    Kind.BACKWARD_WEIGHTS: Kind.BACKWARD_INPUTS,
}


def check(table: Schedule) -> None:
    """Raises a ScheduleError for the first rule that a table breaks, with stage, tick and action."""
    places = [_check_computations(table, stage) for stage in range(len(table.stages))]
    for stage in range(len(table.stages)):
        _check_transfers(table, stage, places[stage])
    _check_pairs(table)
    steps(table)
    if not table.forward_only:
        for stage in range(len(table.stages)):
            _check_memory(table, stage)


Places = dict[tuple[Kind, int, int], int]


def _check_computations(table: Schedule, stage: int) -> Places:
    """Checks that the stage computes everything once and in order; returns the tick of each computation."""
    places: Places = {}
    actions = table.stages[stage]
    for tick, action in enumerate(actions):
        if not (0 <= action.micro_batch < table.micro_batches and 0 <= action.chunk < table.chunks):
            sizes = f"{table.micro_batches} micro-batches and {table.chunks} chunks"
            raise ScheduleError(stage, tick, action, f"the table has {sizes}")
        if action.kind in TRANSFERS:
            continue
        kind, micro_batch, chunk = key = action[:3]
        if key in places:
            raise ScheduleError(stage, tick, action, f"also at tick {places[key]}; expected once")
        if table.forward_only and kind is not Kind.FORWARD:
            raise ScheduleError(stage, tick, action, "expected only forward passes in an evaluation")
        if kind in BEFORE and (BEFORE[kind], micro_batch, chunk) not in places:
            raise ScheduleError(stage, tick, action, f"expected after its {BEFORE[kind].value}")
        other = BACKWARDS[kind is Kind.BACKWARD]
        if kind in BACKWARDS and (other, micro_batch, chunk) in places:
            raise ScheduleError(stage, tick, action, f"its {other.value} has been computed; expected one backward")
        _check_local_input(table, stage, tick, places)
        places[key] = tick
    for micro_batch, chunk in itertools.product(range(table.micro_batches), range(table.chunks)):
        kinds = {kind for kind in Kind if (kind, micro_batch, chunk) in places}
        wanted = [Kind.FORWARD]
        if not table.forward_only:
            is_split = not kinds.isdisjoint(HALVES)
            wanted += HALVES if is_split else [Kind.BACKWARD]
        for kind in wanted:
            if kind not in kinds:
                raise ScheduleError(stage, len(actions), Action(kind, micro_batch, chunk), "missing; expected once")
    return places


def _check_local_input(table: Schedule, stage: int, tick: int, places: Places) -> None:
    """Checks that the input of a computation is there if another chunk of the same stage makes it."""
    action = table.stages[stage][tick]
    needed = input_of(action, stage, len(table.stages), table.chunks)
    if needed and needed.peer == stage:
        is_forward = action.kind is Kind.FORWARD
        kinds, chunk = ((Kind.FORWARD,), action.chunk - 1) if is_forward else (BACKWARDS, action.chunk + 1)
        if not any((kind, action.micro_batch, chunk) in places for kind in kinds):
            raise ScheduleError(stage, tick, action, f"expected after {kinds[0].value} of chunk {chunk}")


def _check_transfers(table: Schedule, stage: int, places: Places) -> None:
    """Checks that the stage sends each output after its computation and receives each input before it, once."""
    count, actions = len(table.stages), table.stages[stage]
    wanted: dict[Action, int] = {}
    for (kind, micro_batch, chunk), tick in places.items():
        for transfer_of in (input_of, output_of):
            transfer = transfer_of(Action(kind, micro_batch, chunk), stage, count, table.chunks)
            if transfer and transfer.peer != stage:
                wanted[transfer] = tick
    seen: dict[Action, int] = {}
    for tick, action in enumerate(actions):
        if action.kind not in TRANSFERS:
            continue
        if action not in wanted:
            raise ScheduleError(stage, tick, action, "no computation makes or needs it")
        if action in seen:
            raise ScheduleError(stage, tick, action, f"also at tick {seen[action]}; expected once")
        computed = wanted[action]
        if (action.kind is Kind.SEND) != (tick > computed):
            where = "after" if action.kind is Kind.SEND else "before"
            raise ScheduleError(stage, tick, action, f"expected {where} {actions[computed]} at tick {computed}")
        seen[action] = tick
    for action, computed in wanted.items():
        if action not in seen:
            raise ScheduleError(stage, computed, actions[computed], f"needs {action}, which is missing")


def _check_pairs(table: Schedule) -> None:
    """Checks that from one stage to another, both have the same transfers in the same order."""
    lists: dict[tuple[int, int, bool], list[tuple[int, Action]]] = defaultdict(list)
    for stage, actions in enumerate(table.stages):
        for tick, action in enumerate(actions):
            if action.kind is Kind.SEND:
                lists[stage, action.peer, True].append((tick, action))
            elif action.kind is Kind.RECEIVE:
                lists[action.peer, stage, False].append((tick, action))
    for sender, receiver, _ in list(lists):
        sent, received = lists[sender, receiver, True], lists[sender, receiver, False]
        # Both have the same transfers, because each end has exactly those that its computations need.
        for (_, send), (tick, receive) in zip(sent, received, strict=True):
            if send.name != receive.name:
                raise ScheduleError(receiver, tick, receive, f"expected {send.name} there, in the order of the sends")


def _check_memory(table: Schedule, stage: int) -> None:
    """Checks that the stage never holds more activations than its schedule may."""
    actions = table.stages[stage]
    most = bound(table.schedule, stage, len(table.stages), table.micro_batches, table.chunks)
    held = 0
    for tick, action in enumerate(actions):
        held += (action.kind is Kind.FORWARD) - (action.kind in RELEASING)
        if held > most:
            reason = f"holds the activations of {held} micro-batches and chunks; expected at most {most}"
            raise ScheduleError(stage, tick, action, reason)


def bound(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """Returns the most activations that a stage of a schedule may hold, each of one micro-batch and one chunk.

    Sources: arXiv 2104.04473, sections 2.2.1 and 2.2.2; arXiv 2401.10241, section 2.3.
    """
    if stages == 1:
        return chunks
    later = stages - stage - 1
    if schedule == "interleaved" and chunks > 1:
        return min(2 * later + (chunks - 1) * stages + 1, chunks * micro_batches)
    return min({"gpipe": micro_batches, "zero_bubble": stages}.get(schedule, later + 1), micro_batches)
