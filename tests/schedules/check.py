"""Proves that a table of `tftrain.schedules` is complete, in order, free of deadlocks and within its memory.

An engine that runs a table that passes computes every micro-batch once, and no stage waits for ever.
"""

import itertools
from collections import defaultdict

from tftrain.schedules.activations import RELEASING
from tftrain.schedules.simulation import ScheduleError, steps
from tftrain.schedules.table import TRANSFERS, Action, Schedule, input_of, output_of
from tftrain.schedules.table import ActionKind as Kind

BACKWARDS, HALVES = (Kind.BACKWARD, Kind.BACKWARD_INPUTS), (Kind.BACKWARD_INPUTS, Kind.BACKWARD_WEIGHTS)
# What a stage computes before an action, of the same micro-batch and chunk.
BEFORE = {Kind.BACKWARD: Kind.FORWARD, Kind.BACKWARD_INPUTS: Kind.FORWARD, Kind.BACKWARD_WEIGHTS: Kind.BACKWARD_INPUTS}

Ticks = dict[tuple[Kind, int, int], int]  # of computations


def check(table: Schedule) -> None:
    """Raises a ScheduleError for the first rule that a table breaks, with stage, tick and action."""
    for stage in range(len(table.stages)):
        _check_transfers(table, stage, _check_computations(table, stage))
    _check_pairs(table)
    steps(table)
    for stage in () if table.forward_only else range(len(table.stages)):
        _check_memory(table, stage)


def _check_computations(table: Schedule, stage: int) -> Ticks:
    """Checks that the stage computes everything once and in order; returns the tick of each computation."""
    ticks: Ticks = {}
    for tick, action in enumerate(table.stages[stage]):
        kind, micro_batch, chunk = key = action[:3]
        rules = [(0 <= micro_batch < table.micro_batches and 0 <= chunk < table.chunks, "it is out of range")]
        if kind not in TRANSFERS:
            other = BACKWARDS[kind is Kind.BACKWARD]
            rules += [
                (key not in ticks, "expected once"),
                (kind is Kind.FORWARD or not table.forward_only, "expected only forward passes in an evaluation"),
                (kind not in BEFORE or (BEFORE[kind], micro_batch, chunk) in ticks, "expected after another one"),
                (kind not in BACKWARDS or (other, micro_batch, chunk) not in ticks, "expected one backward"),
                (_has_local_input(table, stage, action, ticks), "expected after another chunk"),
            ]
            ticks[key] = tick
        for holds, reason in rules:
            if not holds:
                raise ScheduleError(stage, tick, action, reason)
    for micro_batch, chunk in itertools.product(range(table.micro_batches), range(table.chunks)):
        is_split = any((kind, micro_batch, chunk) in ticks for kind in HALVES)
        backward = () if table.forward_only else HALVES if is_split else (Kind.BACKWARD,)
        for kind in (Kind.FORWARD, *backward):
            if (kind, micro_batch, chunk) not in ticks:
                raise ScheduleError(stage, len(table.stages[stage]), Action(kind, micro_batch, chunk), "missing")
    return ticks


def _has_local_input(table: Schedule, stage: int, action: Action, ticks: Ticks) -> bool:
    """Whether the input of a computation is there if another chunk of the same stage makes it."""
    needed = input_of(action, stage, len(table.stages), table.chunks)
    if not needed or needed.peer != stage:
        return True
    is_forward = action.kind is Kind.FORWARD
    kinds, chunk = ((Kind.FORWARD,), action.chunk - 1) if is_forward else (BACKWARDS, action.chunk + 1)
    return any((kind, action.micro_batch, chunk) in ticks for kind in kinds)


def _check_transfers(table: Schedule, stage: int, ticks: Ticks) -> None:
    """Checks that the stage sends each output after its computation and receives each input before it, once."""
    wanted: dict[Action, int] = {}
    for (kind, micro_batch, chunk), tick in ticks.items():
        for transfer_of in (input_of, output_of):
            transfer = transfer_of(Action(kind, micro_batch, chunk), stage, len(table.stages), table.chunks)
            if transfer and transfer.peer != stage:
                wanted[transfer] = tick
    for tick, action in enumerate(table.stages[stage]):
        if action.kind in TRANSFERS:
            computed = wanted.pop(action, None)
            if computed is None or (action.kind is Kind.SEND) != (tick > computed):
                raise ScheduleError(stage, tick, action, "expected once, before or after its computation")
    for action, computed in wanted.items():
        raise ScheduleError(stage, computed, action, "missing")


def _check_pairs(table: Schedule) -> None:
    """Checks that from one stage to another, both have the same transfers in the same order."""
    names: dict[tuple[int, int], dict[bool, list[str]]] = defaultdict(lambda: {True: [], False: []})
    for stage, actions in enumerate(table.stages):
        for action in actions:
            if action.kind in TRANSFERS:
                sends = action.kind is Kind.SEND
                names[(stage, action.peer) if sends else (action.peer, stage)][sends].append(action.name)
    for (_, receiver), both in names.items():
        if both[True] != both[False]:
            raise ScheduleError(receiver, 0, table.stages[receiver][0], "expected the order of the sends")


def _check_memory(table: Schedule, stage: int) -> None:
    """Checks that the stage never holds more activations than its schedule may."""
    most = bound(table.schedule, stage, len(table.stages), table.micro_batches, table.chunks)
    held = 0
    for tick, action in enumerate(table.stages[stage]):
        held += (action.kind is Kind.FORWARD) - (action.kind in RELEASING)
        if held > most:
            raise ScheduleError(stage, tick, action, f"holds {held} activations; expected at most {most}")


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
