"""When checkpoints are due, by steps and by the chief's clock."""

import pytest

from tests.kit.ranks import started_ranks
from tests.kit.runs import SMALL, losses
from tftrain.checkpoint import folder
from tftrain.config.run import CheckpointConfig
from tftrain.host.exit_codes import ExitCode
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


@pytest.mark.multirank
@pytest.mark.nightly
def test_two_ranks_save_by_the_chiefs_clock_and_a_killed_run_goes_on_from_there(tmp_path):
    """Rank 1's clock runs backwards, so ranks that decided by themselves would wait for each other for ever."""
    settings = [*SMALL, "--global_batch_size=4", f"--output_dir={tmp_path}", "--eval_every=-1", "--resume=auto"]
    program = f"""
import os, sys, time
from tftrain import run
from tftrain.state import schedule
if os.environ["HOROVOD_RANK"] == "1":
    schedule.SaveSchedule.__init__.__defaults__ = (lambda: -time.monotonic(),)
sys.exit(run.main(["tftrain.run", *{settings}, "--checkpoint_minutes=0.01", *sys.argv[1:]]))
"""
    with started_ranks(2, ["-c", program, "--max_steps=1000000"]) as ranks:
        ranks.wait_for("step_")
        ranks.processes[0].kill()
        assert ranks.codes([1], 60) == [ExitCode.PEER_ENDED]
    newest = folder.order(folder.find(tmp_path)[-1])[0]
    assert newest > 0
    with started_ranks(2, ["-c", program, f"--max_steps={newest + 2}"]) as ranks:
        assert ranks.codes([0, 1], 120) == [0, 0]
        assert f"continuing after step {newest} of" in ranks.output(0)
    assert len(losses(tmp_path)) == newest + 2
