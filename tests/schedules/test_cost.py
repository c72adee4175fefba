"""The planner's quick times and peaks equal those of the whole table."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.schedules.sizes import sizes
from tftrain.schedules import cost, orders
from tftrain.schedules.simulation import even_durations, simulate, step_time
from tftrain.schedules.table import peak_activations


@given(sizes(least_stages=2), some.integers(0, 8), some.floats(1, 2), some.floats(1, 2), some.floats(0, 0.1))
def test_times_and_peaks_are_those_of_the_table(given_sizes, rounds, backward, last, transfer):
    schedule, stages, micro_batches, chunks = given_sizes
    micro_batches += rounds * stages
    even = [(1.0, 1.0, backward)] * (stages - 1) + [(last, last, last * backward)]
    durations = even_durations(even, chunks, transfer)
    table = orders.table(schedule, stages, micro_batches, chunks)
    found = cost.step_time(schedule, stages, micro_batches, chunks, durations)
    # Two numbers of micro-batches give the slope of all of them. A slower stage may need longer to set the pace.
    equal = last == backward == 1 or micro_batches <= 3 * stages
    assert found.total == pytest.approx(step_time(simulate(table, durations)), rel=1e-9 if equal else 0.02)
    for stage, actions in enumerate(table.stages):
        assert cost.peak(schedule, stage, stages, micro_batches, chunks) == peak_activations(actions, chunks)


def test_many_micro_batches_cost_as_little_as_a_few():
    cost._computations.cache_clear()
    durations = even_durations([(1.0, 1.0, 1.0)] * 4)
    assert cost.step_time("1f1b", 4, 10**9, 1, durations).total == 3.0 * (10**9 + 3)
    assert all(len(made) < 100 for made in [cost._computations("1f1b", 4, count, 1) for count in (8, 12)])


def test_transfers_are_those_that_delay_the_step():
    for schedule, count in (("gpipe", 6), ("zero_bubble", 12)):
        times = [
            cost.step_time(schedule, 4, 16, 1, even_durations([(1.0, 1.0, 1.0)] * 4, 1, transfer))
            for transfer in (0.0, 0.1)
        ]
        assert times[0].transfers == 0
        assert times[1].transfers == pytest.approx(times[1].total - times[0].total) == pytest.approx(count * 0.1)
