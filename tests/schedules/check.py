"""Proves that a table of `tftrain.schedules` is complete, in order, free of deadlocks and within its memory.

An engine that runs a table that passes computes every micro-batch once, and no stage waits for ever.
"""

import itertools
from collections import Counter

from tftrain.schedules.simulation import steps
from tftrain.schedules.table import Action, Schedule, input_of, output_of, peak_activations
from tftrain.schedules.table import ActionKind as Kind

F, B, BI, BW = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUTS, Kind.BACKWARD_WEIGHTS


def check(table: Schedule) -> None:
    """Raises an AssertionError, or a ScheduleError, for the first rule that a table breaks."""
    count = len(table.stages)
    for stage, actions in enumerate(table.stages):
        _check_stage(table, stage)
        most = bound(table.schedule, stage, count, table.micro_batches, table.chunks)
        held = peak_activations(actions, table.chunks).total
        assert table.forward_only or held <= most, f"stage {stage} holds {held} activations; expected at most {most}"
    for sender, receiver in itertools.permutations(range(count), 2):
        sent, received = (
            [action.name for action in table.stages[here] if (action.kind, action.peer) == (kind, there)]
            for here, kind, there in ((sender, Kind.SEND, receiver), (receiver, Kind.RECEIVE, sender))
        )
        assert sent == received, f"stage {receiver} does not receive in the order of the sends of stage {sender}"
    steps(table)


def _check_stage(table: Schedule, stage: int) -> None:
    """Checks that a stage computes and transfers everything once, and each after what it needs."""
    actions, sizes = table.stages[stage], (stage, len(table.stages), table.chunks)
    ticks, expected, pairs = {action: tick for tick, action in enumerate(actions)}, [], []
    for micro_batch, chunk in itertools.product(range(table.micro_batches), range(table.chunks)):
        forward, whole, inputs, weights = (Action(kind, micro_batch, chunk) for kind in (F, B, BI, BW))
        backward = [] if table.forward_only else [inputs, weights] if inputs in ticks else [whole]
        pairs += itertools.pairwise([forward, *backward])
        for action in (forward, *backward):
            expected.append(action)
            for transfer, is_input in ((input_of(action, *sizes), True), (output_of(action, *sizes), False)):
                if transfer is not None and transfer.peer != stage:
                    expected.append(transfer)
                    pairs.append((transfer, action) if is_input else (action, transfer))
                elif transfer is not None and is_input:  # Another chunk of this stage makes it.
                    made_by = chunk - 1 if action is forward else chunk + 1
                    pairs.append((action._replace(chunk=made_by), action))
    assert Counter(actions) == Counter(expected), f"stage {stage}: {set(actions) ^ set(expected)}, or one of them twice"
    for first, second in pairs:
        assert ticks[first] < ticks[second], f"stage {stage}: expected {first} before {second}"


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
