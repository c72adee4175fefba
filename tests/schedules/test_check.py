"""The check refuses tables that are damaged in any way, and names stage, tick and action."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.schedules.check import check
from tests.schedules.sizes import sizes
from tftrain.schedules import orders
from tftrain.schedules.simulation import ScheduleError
from tftrain.schedules.table import TRANSFERS, Action, Schedule
from tftrain.schedules.table import ActionKind as Kind


def changed(table: Schedule, stage: int, actions) -> Schedule:
    stages = [*table.stages]
    stages[stage] = tuple(actions)
    return table._replace(stages=tuple(stages))


def place(table: Schedule, stage: int, kind: Kind, micro_batch: int, what: str = "", chunk: int = 0) -> int:
    return next(
        tick for tick, action in enumerate(table.stages[stage]) if action[:4] == (kind, micro_batch, chunk, what)
    )


def refused(table: Schedule) -> ScheduleError:
    with pytest.raises(ScheduleError) as found:
        check(table)
    return found.value


@given(sizes(), some.data())
def test_a_table_without_one_of_its_actions_is_refused(given_sizes, data):
    table = orders.table(*given_sizes)
    stage = data.draw(some.integers(0, len(table.stages) - 1))
    tick = data.draw(some.integers(0, len(table.stages[stage]) - 1))
    refused(changed(table, stage, table.stages[stage][:tick] + table.stages[stage][tick + 1 :]))


@given(sizes(), some.data())
def test_a_table_with_an_action_twice_is_refused(given_sizes, data):
    table = orders.table(*given_sizes)
    stage = data.draw(some.integers(0, len(table.stages) - 1))
    actions = table.stages[stage]
    tick, to = (data.draw(some.integers(0, len(actions) - 1)) for _ in range(2))
    refused(changed(table, stage, [*actions[:to], actions[tick], *actions[to:]]))


@given(sizes(least_stages=2), some.data())
def test_a_transfer_with_another_peer_boundary_or_micro_batch_is_refused(given_sizes, data):
    table = orders.table(*given_sizes)
    stage = data.draw(some.integers(0, len(table.stages) - 1))
    ticks = [tick for tick, action in enumerate(table.stages[stage]) if action.kind in TRANSFERS]
    tick, actions = data.draw(some.sampled_from(ticks)), list(table.stages[stage])
    field = data.draw(some.sampled_from(["peer", "boundary", "micro_batch", "chunk"]))
    actions[tick] = actions[tick]._replace(**{field: getattr(actions[tick], field) + 1})
    refused(changed(table, stage, actions))


# Schedule, stage, the action to move and the one at whose place it comes.
MOVES = {
    "backward before its forward": ("1f1b", 1, (Kind.BACKWARD, 0), (Kind.RECEIVE, 0, "activation")),
    "weights before inputs": ("zero_bubble", 0, (Kind.BACKWARD_WEIGHTS, 0), (Kind.BACKWARD_INPUTS, 0)),
    "a send before its computation": ("1f1b", 0, (Kind.SEND, 0, "activation"), (Kind.FORWARD, 0)),
    "a receive after its computation": ("1f1b", 1, (Kind.RECEIVE, 0, "activation"), (Kind.FORWARD, 0)),
    "receives in another order": ("gpipe", 1, (Kind.RECEIVE, 1, "activation"), (Kind.RECEIVE, 0, "activation")),
}


@pytest.mark.parametrize(("schedule", "stage", "moved", "to"), MOVES.values(), ids=MOVES)
def test_an_action_at_another_place_is_refused(schedule, stage, moved, to):
    table = orders.table(schedule, 2, 2)
    actions = list(table.stages[stage])
    actions.insert(place(table, stage, *to), actions.pop(place(table, stage, *moved)))
    assert refused(changed(table, stage, actions)).stage == stage


def test_an_error_names_stage_tick_and_action():
    table = orders.table("1f1b", 2, 2)
    error = refused(changed(table, 1, table.stages[1][place(table, 1, Kind.BACKWARD, 0) :]))
    assert (error.stage, error.tick, error.action) == (1, 0, Action(Kind.BACKWARD, 0))
    assert str(error).startswith("stage 1, tick 0, B of micro-batch 0, chunk 0: expected after")


def test_stages_that_wait_for_each_other_are_refused():
    # Stage 0 wants the gradient of micro-batch 0 before it begins micro-batch 1, stage 1 both forwards first.
    table = orders.table("1f1b", 2, 2)._replace(schedule="gpipe")
    eager = orders.table("gpipe", 2, 2)
    first = [
        Action(Kind.FORWARD, 0),
        Action(Kind.BACKWARD, 0),
        Action(Kind.FORWARD, 1),
        Action(Kind.BACKWARD, 1),
    ]
    actions = []
    for action in first:
        if action.kind is Kind.BACKWARD:
            actions.append(Action(Kind.RECEIVE, action.micro_batch, 0, "gradient", 1, 0))
        actions.append(action)
        if action.kind is Kind.FORWARD:
            actions.append(Action(Kind.SEND, action.micro_batch, 0, "activation", 1, 0))
    error = refused(changed(eager, 0, actions))
    assert "wait for each other" in str(error)
    check(changed(table, 0, actions))  # With one forward, one backward on stage 1 it is only slower.


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (orders.table("gpipe", 4, 8)._replace(schedule="1f1b"), "holds 5 activations; expected at most 4"),
        (orders.table("1f1b", 2, 2)._replace(forward_only=True), "only forward passes in an evaluation"),
        (orders.table("1f1b", 2, 2)._replace(micro_batches=1), "out of range"),
    ],
)
def test_a_table_is_refused_as_what_it_is_not(table, words):
    assert words in str(refused(table))
