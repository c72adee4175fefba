"""The check refuses tables that are damaged in any way."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.schedules.check import check
from tests.schedules.sizes import sizes
from tftrain.schedules import orders
from tftrain.schedules.simulation import ScheduleError, steps
from tftrain.schedules.table import TRANSFERS, Action
from tftrain.schedules.table import ActionKind as Kind


def refused(table, stage, actions, match="."):
    stages = (*table.stages[:stage], tuple(actions), *table.stages[stage + 1 :])
    with pytest.raises((AssertionError, ScheduleError), match=match):
        check(table._replace(stages=stages))


@given(sizes(), some.sampled_from(["remove", "repeat", "alter"]), some.data())
def test_a_table_without_an_action_or_with_one_twice_or_another_transfer_is_refused(given_sizes, how, data):
    table = orders.table(*given_sizes)
    stage = data.draw(some.integers(0, len(table.stages) - 1))
    actions, at = list(table.stages[stage]), some.integers(0, len(table.stages[stage]) - 1)
    tick = data.draw(at)
    if how == "remove":
        actions.pop(tick)
    elif how == "repeat" or actions[tick].kind not in TRANSFERS:
        actions.insert(data.draw(at), actions[tick])
    else:
        field = data.draw(some.sampled_from(["peer", "boundary", "micro_batch", "chunk"]))
        actions[tick] = actions[tick]._replace(**{field: getattr(actions[tick], field) + 1})
    refused(table, stage, actions)


@pytest.mark.parametrize(
    ("schedule", "stage", "moved", "before", "match"),
    [
        ("1f1b", 1, (Kind.BACKWARD, ""), (Kind.FORWARD, ""), "expected F of micro-batch 0, chunk 0 before B of"),
        ("zero_bubble", 0, (Kind.BACKWARD_WEIGHTS, ""), (Kind.BACKWARD_INPUTS, ""), "expected BI .* before BW"),
        ("1f1b", 0, (Kind.SEND, "activation"), (Kind.FORWARD, ""), "expected F .* before send activation"),
        ("1f1b", 1, (Kind.FORWARD, ""), (Kind.RECEIVE, "activation"), "expected receive activation .* before F"),
    ],
)
def test_an_action_before_what_it_needs_is_refused(schedule, stage, moved, before, match):
    table = orders.table(schedule, 2, 2)
    actions = list(table.stages[stage])
    places = [
        next(
            tick for tick, action in enumerate(actions) if (action.kind, action.what, action.micro_batch) == (*each, 0)
        )
        for each in (moved, before)
    ]
    actions.insert(places[1], actions.pop(places[0]))
    refused(table, stage, actions, match)


def test_receives_in_another_order_than_sends_are_refused():
    table = orders.table("gpipe", 2, 2)
    actions = list(table.stages[1])
    first, second = (tick for tick, action in enumerate(actions) if action.kind is Kind.RECEIVE)
    actions.insert(first, actions.pop(second))
    refused(table, 1, actions, "in the order of the sends")


def test_stages_that_wait_for_each_other_are_refused_with_stage_tick_and_action():
    # Stage 0 wants the gradient of micro-batch 0 before it begins micro-batch 1, stage 1 both forwards first.
    computed = [Action(kind, number) for number in (0, 1) for kind in (Kind.FORWARD, Kind.BACKWARD)]
    actions = []
    for action in computed:
        if action.kind is Kind.BACKWARD:
            actions.append(Action(Kind.RECEIVE, action.micro_batch, 0, "gradient", 1, 0))
        actions.append(action)
        if action.kind is Kind.FORWARD:
            actions.append(Action(Kind.SEND, action.micro_batch, 0, "activation", 1, 0))
    table = orders.table("gpipe", 2, 2)
    refused(table, 0, actions, "wait for each other")
    with pytest.raises(ScheduleError, match="stage 0, tick 3, B of micro-batch 0, chunk 0: waits for ever"):
        steps(table._replace(stages=(tuple(actions), table.stages[1])))
    # With one forward, one backward on stage 1 it is only slower.
    slower = orders.table("1f1b", 2, 2)
    check(slower._replace(schedule="gpipe", stages=(tuple(actions), slower.stages[1])))


def test_more_activations_than_the_schedule_may_hold_are_refused():
    table = orders.table("gpipe", 4, 8)._replace(schedule="1f1b")
    refused(table, 0, table.stages[0], "stage 0 holds 8 activations; expected at most 4")
