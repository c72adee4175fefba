"""The clock of the rows: which seconds a row has, where steps of it compile."""

import math
from types import SimpleNamespace

import pytest

from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.observe import reporter
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


@pytest.mark.parametrize(
    ("flags", "consumed", "batch", "length", "seconds"),
    [
        ({"max_seq_length": 128}, 8 * 40, 8, 128, 60 * 0.5),
        ({"phases": "until_samples=800 max_seq_length=32; max_seq_length=128"}, 8 * 60, 8, 32, 40 * 0.5),
        ({"phases": "until_samples=640 max_seq_length=32; max_seq_length=128"}, 8 * 60, 8, 32, (20 + 4 * 20) * 0.5),
        ({"batch_rampup": "4:4:40", "max_seq_length": 32}, 4 * 10, 4, 32, 2 * 90 * 0.5),
    ],
    ids=["one size", "a phase that no step reaches", "longer sequences", "larger batches"],
)
def test_the_time_left_counts_the_tokens_of_later_steps(monkeypatch, flags, consumed, batch, length, seconds):
    config = changed(TrainConfig(), {"global_batch_size": 8, "micro_batch_size": 4, "grad_accum_steps": 2, **flags})
    row = SimpleNamespace(consumed_samples=consumed, global_batch_size=batch, max_seq_length=length)
    monkeypatch.setattr(reporter, "train_row", lambda *_: row)
    left, nothing = [], lambda *_: None
    own = SimpleNamespace(
        clock=SimpleNamespace(seconds_per_step=lambda: 0.5, start=nothing),
        _writer=SimpleNamespace(advance=nothing, train=lambda _, seconds_left: left.append(seconds_left)),
        _goodput=SimpleNamespace(note=nothing),
        _checkpoints=SimpleNamespace(saves=SimpleNamespace(failed=0)),
        _run=SimpleNamespace(timeline=config.timeline),
        _memory_step=2,
        _max_steps=100,
    )
    number = next(n for n in range(101) if own._run.timeline.samples_after(n) == consumed)
    reporter.Reporter.step(own, number, None, is_due=True)
    assert left == [pytest.approx(seconds)]
