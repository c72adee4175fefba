"""When checkpoints are due, by steps and by the chief's clock."""

import pytest

from tftrain.config.run import CheckpointConfig
from tftrain.state.schedule import SaveSchedule


class Clock:
    def __init__(self):
        self.seconds = 1e6

    def __call__(self):
        return self.seconds


def due_steps(seconds_per_step, steps, **settings):
    """Returns the steps after which one rank alone saves."""
    clock, found = Clock(), []
    schedule = SaveSchedule(CheckpointConfig(**settings), True, clock)
    for step in range(1, steps + 1):
        request = schedule.request()
        clock.seconds += seconds_per_step
        if schedule.is_due(step, request):
            found.append(step)
            clock.seconds += 100  # The save takes time as well.
            schedule.saved()
    return found


def test_by_default_a_run_saves_every_half_hour():
    # 180 steps of 10 seconds are half an hour; the request travels with the step after that.
    assert due_steps(10, 600) == [181, 362, 543]


def test_either_interval_counts_and_a_save_by_steps_starts_the_minutes_again():
    assert due_steps(60, 20, checkpoint_every=7, checkpoint_minutes=5) == [6, 7, 13, 14, 20]
    assert due_steps(60, 20, checkpoint_every=7, checkpoint_minutes=8) == [7, 14]


def test_zero_switches_an_interval_off():
    assert due_steps(3600, 20, checkpoint_minutes=0) == []
    assert due_steps(3600, 20, checkpoint_minutes=0, checkpoint_every=9) == [9, 18]


def test_only_the_clock_of_the_chief_counts_and_its_request_is_that_of_all():
    clock = Clock()
    schedule = SaveSchedule(CheckpointConfig(checkpoint_minutes=1), False, clock)
    clock.seconds += 3600
    assert schedule.request() == 0
    assert not schedule.is_due(1, 0.0)
    assert schedule.is_due(2, 1.0)


def test_a_checkpoint_that_was_not_written_stays_due():
    schedule = SaveSchedule(CheckpointConfig(checkpoint_every=5, checkpoint_minutes=0), True)
    assert schedule.is_due(5, 0.0)
    assert schedule.is_due(6, 0.0)
    schedule.saved()
    assert not schedule.is_due(7, 0.0)


@pytest.mark.parametrize(
    ("settings", "is_safe"),
    [
        ({}, True),
        ({"checkpoint_minutes": 0}, False),
        ({"checkpoint_minutes": 0, "checkpoint_every": 2}, True),
        ({"checkpoint_minutes": 0, "checkpoint_every": 3}, False),
    ],
)
def test_a_run_knows_whether_it_saves_before_its_end(settings, is_safe):
    assert CheckpointConfig(**settings).saves_before(3) == is_safe
