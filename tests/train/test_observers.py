"""What each observer decides, and the loop that asks them, over fake steps: no model and no ranks."""

import contextlib
import math
from types import SimpleNamespace
from unittest.mock import Mock, call

import numpy as np
import pytest

from tftrain.config.run import CheckpointConfig, LimitsConfig
from tftrain.data.left_out import NOTHING
from tftrain.host.exit_codes import ExitCode, UnstableError
from tftrain.observe.reporter import Clock
from tftrain.state.run_state import Evaluation
from tftrain.state.schedule import SaveSchedule
from tftrain.tasks.task import Contents
from tftrain.train.loop import take_steps
from tftrain.train.observers import (
    ChangePhase,
    CheckHealth,
    Decision,
    Evaluate,
    Observer,
    Report,
    Save,
    TakenStep,
    Watch,
)
from tftrain.train.rollback import Rollback
from tftrain.train.step import Requests

LAST, NOTHING_DECIDED = Decision(is_last=True), Decision()


@pytest.fixture
def watchdog():
    return SimpleNamespace(limit=lambda *_, **__: contextlib.nullcontext(SimpleNamespace(restart=None)))


def health(spike=None, problem=None, late_spike=None):
    """A health that has found a spike, or finds one when all steps are checked."""
    fake = Mock(spike=spike, problem=problem)
    fake.has_spike.side_effect = lambda: setattr(fake, "spike", spike or late_spike) or fake.spike is not None
    return fake


class FakePhases:
    """Steps whose results are the requests; phases end after the steps in `ends`."""

    def __init__(self, ends=()):
        self.ends, self.taken, self.held_out = ends, [], None

    def next_batch(self):
        return len(self.taken)

    def size(self, batch):
        return 8, 16

    def contents(self, batch):
        return Contents(8, 100, 128, 1.0)

    def check(self, batch, requests):
        pass

    def step(self, batch, requests):
        self.taken.append(requests)
        return SimpleNamespace(requests=SimpleNamespace(numpy=lambda: np.array(requests, np.float32)))

    def ends_with(self, step):
        return step in self.ends


class Recorder(Observer):
    """Records calls, and decides what it is told to after some steps."""

    def __init__(self, between=None, **requests):
        self.calls, self.between, self.requests = [], between or {}, requests

    def request(self):
        return self.requests

    def begin(self, step, decision):
        self.calls.append(("begin", step.number, decision))

    def after_step(self, step, decision):
        self.calls.append(("after", step.number, decision))

    def between_steps(self, step, decision):
        self.calls.append(("between", step.number, decision))
        return self.between.pop(step.number, None)

    def go_back(self, step):
        self.calls.append(("back", step))


def test_a_later_decision_adds_to_an_earlier_one_and_takes_nothing_away():
    first = Decision(is_last=True, evaluation="losses")
    assert first | Decision() == first
    assert first | Decision(restored=0, has_spike=True) == Decision(
        True, has_spike=True, restored=0, evaluation="losses"
    )
    assert [(d.ends, d.exit_code) for d in (NOTHING_DECIDED, LAST, LAST | Decision(restored=0))] == [
        (False, ExitCode.DONE), (True, ExitCode.DONE), (False, ExitCode.DONE)
    ]  # fmt: skip
    stopped = Decision(is_stopped=True, restored=3)
    assert (stopped.ends, stopped.exit_code) == (True, ExitCode.STOPPED)


def test_steps_are_taken_to_the_last_one_and_each_observer_knows_the_decisions_before_it(watchdog):
    first, second, phases = Recorder({2: Decision(is_best=True)}, save=1), Recorder(signal=15), FakePhases()
    assert take_steps(phases, [first, second], Clock(), watchdog, 1, 3) == LAST
    assert first.calls == [
        ("begin", 1, NOTHING_DECIDED),
        ("after", 2, NOTHING_DECIDED), ("between", 2, NOTHING_DECIDED), ("after", 3, LAST), ("between", 3, LAST),
    ]  # fmt: skip
    assert second.calls[2] == ("between", 2, Decision(is_best=True))
    assert phases.taken == [Requests(signal=15, save=1)] * 2
    assert phases.taken[0].norm_limit == math.inf


def test_no_step_is_taken_after_the_last_one(watchdog):
    observer, phases = Recorder(), FakePhases()
    assert take_steps(phases, [observer], Clock(), watchdog, 3, 3) == LAST
    assert (observer.calls, phases.taken) == ([("begin", 3, LAST)], [])


def test_a_run_that_goes_back_takes_the_steps_again_even_from_the_last_one(watchdog):
    back = Decision(has_spike=True, restored=1)
    observer, phases = Recorder({3: back}), FakePhases()
    assert take_steps(phases, [observer], Clock(), watchdog, 0, 3) == LAST
    assert [each[:2] for each in observer.calls if each[0] != "after"] == [
        ("begin", 0), ("between", 1), ("between", 2), ("between", 3), ("back", 1), ("between", 2), ("between", 3)
    ]  # fmt: skip


def test_a_signal_to_any_rank_makes_the_step_the_last_one():
    signals = Mock(received=15, stop_requested=lambda number: number > 0)
    watch = Watch(signals)
    assert watch.request() == {"signal": 15}
    assert watch.after_step(TakenStep(1), NOTHING_DECIDED) == NOTHING_DECIDED
    stopped = watch.after_step(TakenStep(1, requests=Requests(signal=15)), NOTHING_DECIDED)
    assert stopped == Decision(is_last=True, is_stopped=True)


def test_limits_travel_only_if_spikes_are_skipped():
    fake = Mock(limits=lambda: (2.0, 3.0))
    assert CheckHealth(fake, skips=True).request() == {"loss_limit": 2.0, "norm_limit": 3.0}
    observer = CheckHealth(fake, skips=False)
    assert observer.request() == {}
    observer.after_step(TakenStep(4, "info"), LAST)
    fake.observe.assert_called_once_with(4, "info", True)


@pytest.mark.parametrize(
    ("number", "decision", "is_due"), [(4, NOTHING_DECIDED, True), (5, NOTHING_DECIDED, False), (5, LAST, True)]
)
def test_a_row_is_due_every_so_many_steps_and_after_the_last_one(number, decision, is_due):
    reporter = Mock()
    Report(reporter, every=2).after_step(TakenStep(number, "info"), decision)
    reporter.step.assert_called_once_with(number, "info", is_due)


RESULT = Evaluation({"loss": 1.0}, None, 4, 4, {"f1": 0.5})


def evaluate(watchdog, found, best=None, **settings):
    held_out = Mock(return_value=RESULT, scorer="scorer")
    return Evaluate(SimpleNamespace(held_out=held_out), best, Mock(), found, watchdog, 2, **settings)


@pytest.mark.parametrize(
    ("number", "decision", "spike", "evaluates"),
    [
        *((2, NOTHING_DECIDED, None, True), (3, NOTHING_DECIDED, None, False), (3, LAST, None, True)),
        *((2, Decision(is_last=True, is_stopped=True), None, False), (2, NOTHING_DECIDED, 1, False)),
    ],
)  # fmt: skip
def test_an_evaluation_is_not_made_after_a_signal_or_a_spike(watchdog, number, decision, spike, evaluates):
    observer = evaluate(watchdog, health(spike))
    added = observer.between_steps(TakenStep(number), decision)
    assert added == (Decision(is_last=decision.is_last, evaluation=RESULT) if evaluates else None)
    assert observer.health.observe_evaluation.called == (evaluates and decision.is_last)


def test_the_score_that_is_the_best_is_reported_and_one_that_stays_worse_ends_the_run(watchdog):
    best = Mock(metric="f1", is_exhausted=False)
    best.observe.return_value = True
    observer = evaluate(watchdog, health(), best)
    assert observer.between_steps(TakenStep(2), NOTHING_DECIDED) == Decision(is_best=True, evaluation=RESULT)
    assert best.observe.call_args == call(2, 0.5)
    observer.reporter.predictions.assert_called_once_with("scorer", RESULT)
    best.observe.return_value, best.is_exhausted = False, True
    assert observer.between_steps(TakenStep(4), NOTHING_DECIDED) == Decision(is_last=True, evaluation=RESULT)
    observer.go_back(2)
    observer.reporter.forget_predictions.assert_called_once_with()


def test_an_evaluation_that_is_owed_comes_before_the_first_step(watchdog):
    assert evaluate(watchdog, health()).begin(TakenStep(2), NOTHING_DECIDED) is None
    assert evaluate(watchdog, health(), is_owed=True).begin(TakenStep(2), NOTHING_DECIDED).evaluation == RESULT


def save(watchdog, found, best=None, is_copied=False, **settings):
    checkpoints = Mock()
    checkpoints.in_memory.is_due = lambda step: is_copied
    return Save(
        checkpoints, SaveSchedule(CheckpointConfig(checkpoint_every=2), True), found, best, watchdog, **settings
    )


@pytest.mark.parametrize(
    ("number", "decision", "problem", "saved"),
    [
        *((2, NOTHING_DECIDED, None, call(False, True)), (3, NOTHING_DECIDED, None, None)),
        *((3, Decision(is_best=True), None, call(False, True)), (3, LAST, None, call(True, True))),
        *((2, NOTHING_DECIDED, "not finite", None), (3, LAST, "not finite", call(True, False))),
    ],
)  # fmt: skip
def test_a_checkpoint_is_saved_if_it_is_due_and_the_step_is_finite(watchdog, number, decision, problem, saved):
    observer = save(watchdog, health(problem=problem))
    observer.after_step(TakenStep(number), decision)
    assert observer.between_steps(TakenStep(number), decision) is None
    assert observer.checkpoints.save.call_args == saved
    assert observer.health.settle.called == (number == 2 or decision.is_best)


def test_no_checkpoint_is_saved_after_a_spike_that_the_run_goes_back_for(watchdog):
    observer = save(watchdog, health(spike=2), is_copied=True)
    observer.after_step(TakenStep(2, requests=Requests(save=1)), LAST)
    assert observer.between_steps(TakenStep(2), LAST) == Decision(has_spike=True)
    assert not observer.checkpoints.save.called
    observer.go_back(1)
    observer.after_step(TakenStep(3), NOTHING_DECIDED)
    assert not observer.is_due


def test_the_clock_of_the_chief_asks_all_ranks_for_a_checkpoint(watchdog):
    observer = save(watchdog, health())
    assert observer.request() == {"save": 0.0}
    observer.after_step(TakenStep(3, requests=Requests(save=1)), NOTHING_DECIDED)
    observer.between_steps(TakenStep(3), NOTHING_DECIDED)
    assert observer.checkpoints.save.call_count == 1


def test_the_state_is_copied_in_memory_unless_the_run_ends(watchdog):
    observer = save(watchdog, health(), Mock(step=1), is_copied=True)
    observer.between_steps(TakenStep(3), NOTHING_DECIDED)
    assert (observer.checkpoints.save_in_memory.call_count, observer.checkpoints.saves.keep_step) == (1, 1)
    observer.between_steps(TakenStep(4), LAST)
    assert observer.checkpoints.save_in_memory.call_count == 1
    assert observer.finish() == ExitCode.DONE
    observer.checkpoints.saves.finish.assert_called_once_with()


@pytest.mark.parametrize("needs_first", [False, True])
def test_a_checkpoint_to_go_back_to_is_saved_before_the_first_step(watchdog, needs_first):
    observer = save(watchdog, health(), needs_first=needs_first)
    observer.begin(TakenStep(0), NOTHING_DECIDED)
    assert observer.checkpoints.save.called == needs_first


def rollback(watchdog, found, limits):
    progress = SimpleNamespace(step=12, consumed_samples=96)
    timeline = SimpleNamespace(samples_after=lambda steps, consumed: consumed + 8 * steps)
    run = SimpleNamespace(config=SimpleNamespace(limits=limits), timeline=timeline, progress=progress, left_out=NOTHING)
    checkpoints = Mock(go_back=lambda spike, margin: vars(progress).update(step=4, consumed_samples=32))
    return Rollback(run, checkpoints, found, Mock(), watchdog)


LIMITS = LimitsConfig(on_spike="rollback", rollback_margin=2, rollback_window=3)


@pytest.mark.parametrize(
    ("found", "step", "decision"),
    [
        (health(spike=10), TakenStep(12), Decision(has_spike=True)),
        (health(spike=10), TakenStep(12), Decision(has_spike=True, is_last=True)),
        (health(late_spike=10), TakenStep(12, ends_phase=True), NOTHING_DECIDED),
    ],
)  # fmt: skip
def test_a_spike_leads_back_to_a_checkpoint_and_leaves_its_window_out(watchdog, found, step, decision):
    observer = rollback(watchdog, found, LIMITS)
    assert observer.between_steps(step, decision) == Decision(has_spike=True, restored=4)
    # From two batches before the tenth one, which is a spike, to two after it.
    assert observer.run.left_out.windows == ((7 * 8, 12 * 8),)
    done, row = observer.reporter.rollback.call_args.args
    assert (done, row.step, row.rollback_spike_step, row.rollback_last_position) == (12, 4, 10, 12 * 8 - 1)
    found.go_back.assert_called_once_with()


def test_a_run_stays_where_it_is_without_a_spike_or_after_a_signal(watchdog):
    without, late = rollback(watchdog, health(), LIMITS), rollback(watchdog, health(late_spike=10), LIMITS)
    assert without.between_steps(TakenStep(12, ends_phase=True), NOTHING_DECIDED) == NOTHING_DECIDED
    assert late.between_steps(TakenStep(12), NOTHING_DECIDED) == NOTHING_DECIDED
    stopped = Decision(is_last=True, is_stopped=True, has_spike=True)
    assert late.between_steps(TakenStep(12), stopped) == Decision(has_spike=True)
    assert not late.reporter.rollback.called


def test_a_spike_after_the_last_rollback_that_is_allowed_ends_the_run(watchdog):
    none_left = LimitsConfig(on_spike="rollback", max_rollbacks=0)
    with pytest.raises(UnstableError, match="--max_rollbacks=0"):
        rollback(watchdog, health(spike=10), none_left).between_steps(TakenStep(12), Decision(has_spike=True))


@pytest.mark.parametrize(
    ("step", "decision", "is_ended", "begins"),
    [
        (TakenStep(3), NOTHING_DECIDED, False, False),
        (TakenStep(3, ends_phase=True), NOTHING_DECIDED, True, True),
        (TakenStep(3, ends_phase=True), LAST, True, False),
        (TakenStep(3), Decision(is_last=True, is_stopped=True), True, False),
        (TakenStep(3, ends_phase=True), Decision(has_spike=True, restored=1), False, False),
    ],
)  # fmt: skip
def test_the_next_phase_begins_after_the_last_update_of_one(watchdog, step, decision, is_ended, begins):
    phases, reporter = Mock(), Mock()
    ChangePhase(phases, reporter, watchdog).between_steps(step, decision)
    assert (phases.log_end.called, phases.begin.called) == (is_ended, begins)


@pytest.mark.parametrize("is_other", [False, True])
def test_a_run_that_goes_back_may_come_to_another_phase(watchdog, is_other):
    phases, reporter = Mock(), Mock()
    phases.begin.return_value = is_other
    ChangePhase(phases, reporter, watchdog).go_back(2)
    assert reporter.begin_phase.call_args == (call(2) if is_other else None)


def test_the_batches_ahead_are_dropped_after_the_last_step(watchdog):
    phases = Mock()
    assert ChangePhase(phases, Mock(), watchdog).finish() == ExitCode.DONE
    phases.end.assert_called_once_with()
