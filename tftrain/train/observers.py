"""What happens around the steps of a run: observers in one order, and what they decide after a step.

The loop calls them in the order of `build.observers_of`. The order matters: a signal makes a step the last one before
the report writes its row, a checkpoint is saved only if health found nothing, and the phase changes after all others.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tftrain.host.exit_codes import ExitCode
from tftrain.observe.health import Health
from tftrain.observe.reporter import Reporter
from tftrain.observe.watchdog import FORCED_SECONDS, Watchdog
from tftrain.state.best import Best
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.run_state import Evaluation, StepInfo
from tftrain.state.schedule import SaveSchedule
from tftrain.supervise.signals import Signals
from tftrain.train.phases import Phases
from tftrain.train.step import Requests

logger = logging.getLogger(__name__)


class Decision(NamedTuple):
    """What was decided after a step; equal on all ranks. `|` merges the decision of the next observer."""

    is_last: bool = False  # whether no step follows, unless the run goes back
    is_stopped: bool = False  # whether a signal asked for the end
    has_spike: bool = False  # whether the run goes back to a checkpoint before it goes on
    restored: int | None = None  # the step of the checkpoint that the run has gone back to
    is_best: bool = False  # whether the evaluation after the step has the best score so far
    evaluation: Evaluation | None = None  # after the step, if there was one

    def __or__(self, later: "Decision") -> "Decision":
        """Returns both decisions: a value that the later one leaves out is that of this one."""
        pairs = zip(self, later, strict=True)
        return Decision(*(mine if new is None or new is False else new for mine, new in pairs))

    @property
    def ends(self) -> bool:
        """Whether the loop ends."""
        return self.is_stopped or (self.is_last and self.restored is None)

    @property
    def exit_code(self) -> ExitCode:
        """STOPPED after a signal, else DONE."""
        return ExitCode.STOPPED if self.is_stopped else ExitCode.DONE


class TakenStep(NamedTuple):
    """A step that was taken."""

    number: int  # updates so far, this one included
    info: StepInfo | None = None  # its results, on the device; None for the step before the first one of a start
    requests: Requests = Requests()  # the largest of all ranks
    ends_phase: bool = False  # whether the phase has no further update

    def is_due(self, every: int, decision: Decision) -> bool:
        """Whether what happens every so many steps and after the last one happens now; 0 or less: only the last."""
        return decision.is_last or (every > 0 and self.number % every == 0)


class Observer:
    """What happens around steps. Every rank calls every method, so that a method may have collectives.

    A method that gets a decision gets that of the observers before it, and returns what it adds, if anything.
    """

    def begin(self, step: TakenStep, decision: Decision) -> Decision | None:
        """Does what comes before the first step of a start, given the step before, which an earlier start took."""

    def request(self) -> dict[str, float]:
        """Returns numbers that travel with the next step, by their names in `Requests`."""
        return {}

    def after_step(self, step: TakenStep, decision: Decision) -> Decision | None:
        """Does what belongs to the time of a step; reading `step.info` waits for the device."""

    def between_steps(self, step: TakenStep, decision: Decision) -> Decision | None:
        """Does what may take longer than a step, with a time limit of its own; the step's time is without it."""

    def go_back(self, step: int) -> None:
        """Forgets what came after a step, whose checkpoint the run goes on from."""

    def finish(self) -> ExitCode:
        """Ends what is under way, after the last step; returns the exit code of a run that was not stopped."""
        return ExitCode.DONE


@contextlib.contextmanager
def listen(watchdog: Watchdog) -> Iterator[Signals]:
    """Listens to signals inside a `with` statement, which must end in time after the first one."""

    def stopping(name: str) -> None:
        limit = watchdog.limit(f"stopping after {name}", "preempt_save_seconds", code=ExitCode.NOT_SAVED)
        until_end.enter_context(limit)

    def end_at_once(code: int) -> None:
        watchdog.tell_end(code, FORCED_SECONDS)
        os._exit(code)

    with contextlib.ExitStack() as until_end, Signals(stopping, end_at_once) as signals:
        yield signals


@dataclass
class Watch(Observer):
    """A signal to any rank ends the run after the step."""

    signals: Signals

    def request(self) -> dict[str, float]:
        """Returns the number of this rank's signal, or 0."""
        return {"signal": self.signals.received}

    def after_step(self, step: TakenStep, decision: Decision) -> Decision:
        """Makes the step the last one, if a rank has received a signal."""
        is_stopped = self.signals.stop_requested(int(step.requests.signal))
        return Decision(is_last=is_stopped, is_stopped=is_stopped)


@dataclass
class CheckHealth(Observer):
    """Loss and gradient norm of every step; `skips`: a spike makes no update."""

    health: Health
    skips: bool

    def request(self) -> dict[str, float]:
        """Returns the loss and the gradient norm from which on the next step is a spike."""
        return dict(zip(("loss_limit", "norm_limit"), self.health.limits(), strict=True)) if self.skips else {}

    def after_step(self, step: TakenStep, decision: Decision) -> None:
        """Checks the step before this one; after the last step, this one too."""
        self.health.observe(step.number, step.info, decision.is_last)


@dataclass
class Report(Observer):
    """A row of figures every so many steps."""

    reporter: Reporter
    every: int

    def after_step(self, step: TakenStep, decision: Decision) -> None:
        """Records the step."""
        self.reporter.step(step.number, step.info, step.is_due(self.every, decision))


@dataclass
class Evaluate(Observer):
    """The held-out split every so many steps, 0 for only after the last one; and the best score so far, if any."""

    phases: Phases
    best: Best | None
    reporter: Reporter
    health: Health
    watchdog: Watchdog
    every: int
    is_owed: bool = False  # whether a signal stopped the run before the evaluation after its last step

    def begin(self, step: TakenStep, decision: Decision) -> Decision | None:
        """Makes up for an evaluation that is owed."""
        return self.between_steps(step, decision) if self.is_owed else None

    def between_steps(self, step: TakenStep, decision: Decision) -> Decision | None:
        """Evaluates if it is time, but not after a signal or a spike; ends a run that does not get better."""
        held_out, number = self.phases.held_out, step.number
        if held_out is None or decision.is_stopped or self.health.spike or not step.is_due(self.every, decision):
            return None
        with self.watchdog.limit(f"evaluation after step {number}", "step_timeout_seconds", kind="evaluation") as limit:
            result = held_out(limit.restart)
            self.reporter.evaluation(number, result)
        is_best = bool(self.best and self.best.observe(number, result.scores[self.best.metric]))
        is_last = decision.is_last or bool(self.best and self.best.is_exhausted)
        if is_best:
            self.reporter.predictions(held_out.scorer, result)
        if is_last:
            self.health.settle()
            self.health.observe_evaluation(number, result)
        return Decision(is_last=is_last, is_best=is_best, evaluation=result)

    def go_back(self, step: int) -> None:
        """Forgets later scores, and the predictions of a later evaluation."""
        if self.best and self.best.go_back(step):
            self.reporter.forget_predictions()


@dataclass
class Save(Observer):
    """Checkpoints: by steps, by the clock, of the best score, which is not removed, and the last one; those in memory.

    After a step that is not finite, only the last checkpoint is saved, as one that no run goes on from. After a spike
    that the run goes back for, none is.
    """

    checkpoints: Checkpoints
    schedule: SaveSchedule
    health: Health
    best: Best | None
    watchdog: Watchdog
    needs_first: bool = False  # whether there must be a checkpoint to go back to from the first step on
    is_due: bool = False

    def begin(self, step: TakenStep, decision: Decision) -> None:
        """Saves the first checkpoint."""
        if self.needs_first:
            with self._limit("the first checkpoint"):
                self.checkpoints.save()

    def request(self) -> dict[str, float]:
        """Returns 1 on the chief if its clock says that a checkpoint is due."""
        return {"save": self.schedule.request()}

    def after_step(self, step: TakenStep, decision: Decision) -> None:
        """Finds out whether a checkpoint is due, and then whether this step is finite."""
        self.is_due = self.schedule.is_due(step.number, step.requests.save)
        if self.is_due or self.checkpoints.in_memory.is_due(step.number):
            self.health.settle()

    def between_steps(self, step: TakenStep, decision: Decision) -> Decision | None:
        """Starts to save, if a checkpoint is due."""
        if decision.is_best:
            self.health.settle()
        if self.health.spike is not None:
            return Decision(has_spike=True)
        is_good = not self.health.problem
        if self.best:
            self.checkpoints.saves.keep_step = self.best.step
        if decision.is_last or (is_good and (self.is_due or decision.is_best)):
            with self._limit(f"the checkpoint of step {step.number}"):
                self.checkpoints.save(decision.is_last, is_good)
            self.schedule.saved()
        if is_good and not decision.is_last and self.checkpoints.in_memory.is_due(step.number):
            with self._limit(f"the copy of step {step.number} in memory"):
                self.checkpoints.save_in_memory()

    def go_back(self, step: int) -> None:
        """Forgets what is due: its step comes again."""
        self.schedule.saved()

    def finish(self) -> ExitCode:
        """Waits for the last checkpoint."""
        with self._limit("the last checkpoint"):
            self.checkpoints.saves.finish()
            self.checkpoints.in_memory.end()
        return ExitCode.DONE

    def _limit(self, what: str) -> contextlib.AbstractContextManager[Any]:
        return self.watchdog.limit(what, "save_timeout_seconds", kind="checkpoints")


@dataclass
class ChangePhase(Observer):
    """Begins the next phase after the last update of one; after a rollback, the phase that the run has gone back to."""

    phases: Phases
    reporter: Reporter
    watchdog: Watchdog

    def between_steps(self, step: TakenStep, decision: Decision) -> None:
        """Changes the phase, unless the run goes back."""
        if not decision.has_spike and (decision.is_last or step.ends_phase):
            self.phases.log_end()
            if not decision.is_last:
                self.go_back(step.number)

    def finish(self) -> ExitCode:
        """Drops the batches of steps that are not taken."""
        with self._limit():
            self.phases.end()
        return ExitCode.DONE

    def go_back(self, step: int) -> None:
        """Begins the phase of the update after a step."""
        with self._limit():
            is_new = self.phases.begin()
        if is_new:
            logger.info(self.phases.describe())
            self.reporter.begin_phase(step)

    def _limit(self) -> contextlib.AbstractContextManager[Any]:
        return self.watchdog.limit("reading the batches ahead", "step_timeout_seconds", kind="data")
