"""The clock of the rows: which seconds a row has, where steps of it compile."""

import math

import pytest

from tftrain.report import reporter
from tftrain.tasks.task import Contents


@pytest.fixture
def step(monkeypatch):
    """A function that takes a step of so many seconds with a clock."""
    now = [0.0]
    monkeypatch.setattr(reporter.time, "perf_counter", lambda: now[0])

    def take(clock, seconds, length):
        with clock.step(4, length, Contents(4, 4, 4, 1.0)):
            now[0] += seconds

    return take


def test_the_first_step_has_its_time_in_a_row_of_its_own_only(step):
    clock = reporter.Clock()
    step(clock, 9.0, length=8)
    assert (clock.steps, clock.first_seconds) == (0, 9.0)
    step(clock, 5.0, length=16)  # The row has two steps that compile now.
    assert (clock.steps, math.isnan(clock.first_seconds)) == (0, True)
    step(clock, 0.5, length=8)
    assert (clock.steps, clock.seconds_per_step()) == (1, 0.5)


def test_the_first_step_of_a_phase_is_not_the_time_of_a_row_that_began_before(step):
    clock = reporter.Clock()
    for seconds in (9.0, 0.5):
        step(clock, seconds, length=8)
    clock.begin_phase()
    step(clock, 7.0, length=16)
    assert (clock.steps, math.isnan(clock.first_seconds)) == (0, True)
    clock.begin_phase()
    clock.start()
    step(clock, 7.0, length=16)
    assert clock.first_seconds == 7.0
