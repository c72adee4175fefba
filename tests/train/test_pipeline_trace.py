"""The plan beside a trace takes the durations that were measured."""

import pytest

from tftrain.schedules import orders, simulation
from tftrain.schedules.simulation import even_durations
from tftrain.train.pipeline_trace import durations


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)])
def test_durations_are_those_of_the_events(schedule, chunks):
    table = orders.table(schedule, 2, 4, chunks)
    given = even_durations([(1.0, 2.0, 0.5), (3.0, 4.0, 1.5)], chunks)
    events = simulation.computations(simulation.simulate(table, given))
    found = durations(events, table)
    assert simulation.step_time(simulation.simulate(table, found)) == pytest.approx(simulation.step_time(events))
    assert found.forward == given.forward
