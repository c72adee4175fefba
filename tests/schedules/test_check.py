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


def moved(table, stage, tick, to):
    actions = list(table.stages[stage])
    actions.insert(to, actions.pop(tick))
    return changed(table, stage, actions)


def test_backward_before_its_forward_names_stage_tick_and_action():
    table = orders.table("1f1b", 2, 2)
    error = refused(moved(table, 1, place(table, 1, Kind.BACKWARD, 0), 0))
    assert (error.stage, error.tick, error.action) == (1, 0, Action(Kind.BACKWARD, 0))
    assert str(error) == "stage 1, tick 0, B of micro-batch 0, chunk 0: expected after its F"


def test_weights_before_inputs_are_refused():
    table = orders.table("zero_bubble", 2, 2)
    tick = place(table, 0, Kind.BACKWARD_WEIGHTS, 0)
    assert "expected after its BI" in str(refused(moved(table, 0, tick, place(table, 0, Kind.BACKWARD_INPUTS, 0))))


def test_inputs_without_weights_are_refused():
    table = orders.table("zero_bubble", 2, 2)
    tick = place(table, 0, Kind.BACKWARD_WEIGHTS, 0)
    left = changed(table, 0, table.stages[0][:tick] + table.stages[0][tick + 1 :])
    assert "BW of micro-batch 0, chunk 0: missing" in str(refused(left))


def test_a_send_before_its_computation_and_a_receive_after_it_are_refused():
    table = orders.table("1f1b", 2, 2)
    sent = moved(table, 0, place(table, 0, Kind.SEND, 0, "activation"), 0)
    assert "expected after F of micro-batch 0" in str(refused(sent))
    tick, needing = place(table, 1, Kind.RECEIVE, 0, "activation"), place(table, 1, Kind.FORWARD, 0)
    assert "expected before F of micro-batch 0" in str(refused(moved(table, 1, tick, needing)))


def test_receives_in_another_order_than_sends_are_refused():
    table = orders.table("gpipe", 2, 2)
    first, second = (place(table, 1, Kind.RECEIVE, i, "activation") for i in (0, 1))
    assert "in the order of the sends" in str(refused(moved(table, 1, second, first)))


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


def test_more_activations_than_the_schedule_may_hold_are_refused():
    error = refused(orders.table("gpipe", 4, 8)._replace(schedule="1f1b"))
    assert "stage 0" in str(error)
    assert "holds the activations of 5 micro-batches and chunks; expected at most 4" in str(error)


def test_backward_in_an_evaluation_is_refused():
    table = orders.table("1f1b", 2, 2)._replace(forward_only=True)
    assert "expected only forward passes in an evaluation" in str(refused(table))


def test_a_micro_batch_out_of_range_is_refused():
    table = orders.table("1f1b", 2, 2)._replace(micro_batches=1)
    assert "the table has 1 micro-batches" in str(refused(table))
