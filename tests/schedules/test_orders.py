"""The four schedules: their order, time and memory against the formulas of their papers, and what all tables keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.schedules.check import bound, check
from tests.schedules.sizes import SCHEDULES, sizes
from tftrain.config.fields import ConfigError
from tftrain.config.parallel import PIPELINE_SCHEDULES
from tftrain.schedules import orders
from tftrain.schedules.simulation import bubble_share, even_durations, simulate, step_time
from tftrain.schedules.table import TRANSFERS, peak_activations
from tftrain.schedules.table import ActionKind as Kind

BOX = set(Kind) - set(TRANSFERS)


def test_every_flag_value_is_a_schedule():
    assert set(PIPELINE_SCHEDULES) == set(SCHEDULES)


@pytest.mark.parametrize(
    ("sizes", "stage", "expected"),
    [
        (("gpipe", 3, 4), 0, "F0 F1 F2 F3 B0 B1 B2 B3"),
        (("1f1b", 3, 4), 0, "F0 F1 F2 B0 F3 B1 B2 B3"),
        (("1f1b", 3, 4), 2, "F0 B0 F1 B1 F2 B2 F3 B3"),
        (("zero_bubble", 3, 4), 0, "F0 F1 F2 BI0 BW0 F3 BI1 BW1 BI2 BW2 BI3 BW3"),
        (("zero_bubble", 3, 4), 2, "F0 BI0 F1 BI1 F2 BI2 BW0 F3 BI3 BW1 BW2 BW3"),
        # arXiv 2104.04473, figure 4, with 2 stages of 2 chunks.
        (
            ("interleaved", 2, 4, 2),
            0,
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
        ),
        (
            ("interleaved", 2, 4, 2),
            1,
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0",
        ),
    ],
)
def test_a_stage_computes_its_micro_batches_in_this_order(sizes, stage, expected):
    table = orders.table(*sizes)
    found = (
        f"{kind.value}{micro_batch}.{chunk}" for kind, micro_batch, chunk, *_ in table.stages[stage] if kind in BOX
    )
    assert " ".join(found) == (expected if table.chunks > 1 else expected.replace(" ", ".0 ") + ".0")


@given(some.sampled_from(SCHEDULES), some.integers(1, 6), some.integers(1, 3))
def test_one_stage_accumulates_one_micro_batch_after_the_other(schedule, micro_batches, chunks):
    chunks = chunks if schedule == "interleaved" else 1
    table = orders.table(schedule, 1, micro_batches, chunks)
    each = [(Kind.FORWARD, c) for c in range(chunks)] + [(Kind.BACKWARD, c) for c in reversed(range(chunks))]
    assert [action[:3] for action in table.stages[0]] == [
        (kind, i, chunk) for i in range(micro_batches) for kind, chunk in each
    ]


@given(sizes())
def test_every_table_passes_the_check(given_sizes):
    check(orders.table(*given_sizes))
    schedule, stages, micro_batches, chunks = given_sizes
    check(orders.forward_only(schedule, stages, micro_batches + 1, chunks))


@given(sizes())
def test_gradients_of_a_part_are_added_in_the_order_of_the_micro_batches(given_sizes):
    table = orders.table(*given_sizes)
    for actions in table.stages:
        for chunk in range(table.chunks):
            for kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHTS):
                added = [action.micro_batch for action in actions if action[::2][:2] == (kind, chunk)]
                assert added in ([], list(range(table.micro_batches)))


@given(some.integers(2, 8), some.integers(1, 4), some.integers(1, 4), some.floats(0.25, 4), some.floats(0.25, 4))
def test_bubbles_are_those_of_the_papers(stages, rounds, chunks, forward, backward):
    # (p - 1) (F + B) for 1F1B and GPipe, by the number of chunks if interleaved (arXiv 2104.04473, section 2.2), where
    # the whole stage takes F and B; (p - 1) (F + BI - BW) for ZB-H1 with F = BI = BW (arXiv 2401.10241, table 2).
    micro_batches = stages * rounds
    whole = even_durations([(forward, backward / 2, backward / 2)] * stages)
    for schedule in ("1f1b", "gpipe"):
        events = simulate(orders.table(schedule, stages, micro_batches), whole)
        assert step_time(events) == pytest.approx((micro_batches + stages - 1) * (forward + backward))
        assert bubble_share(events) == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    table = orders.table("interleaved", stages, micro_batches, chunks)
    parts = even_durations([(forward, backward / 2, backward / 2)] * stages, chunks)
    expected = (micro_batches + (stages - 1) / chunks) * (forward + backward)
    assert step_time(simulate(table, parts)) == pytest.approx(expected)
    table, equal = orders.table("zero_bubble", stages, micro_batches), even_durations([(forward,) * 3] * stages)
    assert step_time(simulate(table, equal)) == pytest.approx((3 * micro_batches + stages - 1) * forward)


@given(sizes(least_stages=2))
def test_no_stage_holds_more_activations_than_its_bound_and_some_stage_holds_as_many(given_sizes):
    schedule, stages, micro_batches, chunks = given_sizes
    table = orders.table(*given_sizes)
    peaks = [peak_activations(actions, chunks).total for actions in table.stages]
    assert peaks == [bound(schedule, stage, *given_sizes[1:]) for stage in range(stages)]
    if schedule == "1f1b":
        assert peaks == [min(stages - stage, micro_batches) for stage in range(stages)]
    if schedule == "zero_bubble":
        assert max(peaks) == min(stages, micro_batches)


def test_transfers_of_zero_bubble_hide_behind_backward_for_weights():
    # What a transfer adds to the time of a step does not grow with the number of micro-batches.
    times = {}
    for micro_batches in (8, 16):
        for transfer in (0.0, 0.1):
            table, durations = (
                orders.table("zero_bubble", 4, micro_batches),
                even_durations([(1, 1, 1)] * 4, 1, transfer),
            )
            times[micro_batches, transfer] = step_time(simulate(table, durations))
    assert times[8, 0.1] - times[8, 0.0] == pytest.approx(times[16, 0.1] - times[16, 0.0])


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (("dualpipe", 4, 8, 1), "--pipeline_schedule=dualpipe: expected one of 1f1b, gpipe, interleaved, zero_bubble"),
        (("1f1b", 4, 8, 2), "--virtual_pipeline_size=2: expected 1 with --pipeline_schedule=1f1b"),
        (("interleaved", 4, 10, 2), "such as 8 or 12, not 10"),
        (("interleaved", 4, 3, 2), "such as 4, not 3"),
        (("1f1b", 0, 8, 1), "--pipeline_parallel_size=0: expected at least 1"),
        (("1f1b", 4, 0, 1), "0: expected at least 1 micro-batch"),
    ],
)
def test_impossible_sizes_are_refused(sizes, expected):
    with pytest.raises(ConfigError, match=r".") as refused:
        orders.table(*sizes)
    assert expected in str(refused.value)
