"""What happens around the steps of a run: observers, in one ordered tuple, and what they decide after a step.

The loop calls them in the order watch, health, trace, report, evaluate, a user's own, save. The order matters: a signal
makes a step the last one before the report writes its row, and a checkpoint is saved only if health found nothing.
"""

from dataclasses import dataclass

from tftrain.host.exit_codes import ExitCode
from tftrain.report.health import Health
from tftrain.report.reporter import Reporter
from tftrain.run_state import StepInfo
from tftrain.saving.best import Best
from tftrain.saving.checkpoints import Checkpoints
from tftrain.saving.schedule import SaveSchedule
from tftrain.supervise.signals import Signals
from tftrain.supervise.watchdog import Watchdog
from tftrain.train import pipeline_trace
from tftrain.train.held_out import HeldOut
from tftrain.train.pipeline_trace import PipelineTrace


@dataclass
class Outcome:
    """A step, and what was decided after it; equal on all ranks.

    Attributes:
        number: updates so far, this one included.
        info: the results of the step.
        is_last: whether no step follows. An observer may set it.
        is_stopped: whether a signal asked for the end.
        is_best: whether the evaluation after the step has the best score so far.
    """

    number: int
    info: StepInfo
    is_last: bool
    is_stopped: bool = False
    is_best: bool = False

    @property
    def exit_code(self) -> ExitCode:
        """STOPPED after a signal, else DONE."""
        return ExitCode.STOPPED if self.is_stopped else ExitCode.DONE

    def is_due(self, every: int) -> bool:
        """Whether what happens every so many steps and after the last one happens now; 0 or less: only the last."""
        return self.is_last or (every > 0 and self.number % every == 0)


class Observer:
    """What happens around steps. Every rank calls every method, so that a method may have collectives."""

    def request(self) -> float:
        """Returns a number that travels with the next step: `after_step` gets the largest one of all ranks."""
        return 0.0

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Does what belongs to the time of a step. Reading `outcome.info` waits for the device."""

    def between_steps(self, outcome: Outcome) -> None:
        """Does what may take longer than a step, with a time limit of its own; the step's time is without it."""

    def finish(self) -> None:
        """Ends what is under way, after the last step."""


class Watch(Observer):
    """A signal to any rank ends the run after the step."""

    def __init__(self, signals: Signals):
        """Watches for signals, which are already listened to."""
        self._signals = signals

    def request(self) -> float:
        """Returns the number of this rank's signal, or 0."""
        return self._signals.received

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Makes the step the last one, if a rank has received a signal."""
        outcome.is_stopped = self._signals.stop_requested(int(request))
        outcome.is_last |= outcome.is_stopped


class CheckHealth(Observer):
    """Numbers that are not finite end the run, see `Health`."""

    def __init__(self, health: Health):
        """Checks nothing yet."""
        self._health = health

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Checks the step before this one, so that the device need not wait; and this one too, if it is the last."""
        self._health.observe(outcome.number, outcome.info, outcome.is_last)


class DrawPipeline(Observer):
    """Draws the pipeline's schedule once, see `PipelineTrace`."""

    def __init__(self, trace: PipelineTrace, first_step: int, max_steps: int):
        """Waits for the third step of this process, or the last one."""
        self._trace, self._step = trace, min(first_step + pipeline_trace.STEP - 1, max_steps)

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Draws the step, if it is the one."""
        if outcome.number == self._step:
            self._trace.write()


class Report(Observer):
    """Rows of figures, see `Reporter`."""

    def __init__(self, reporter: Reporter, every: int):
        """Reports every so many steps."""
        self._reporter, self._every = reporter, every

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Records the step, and writes a row if one is due."""
        self._reporter.step(outcome.number, outcome.info, outcome.is_due(self._every))


class Evaluate(Observer):
    """The held-out split every `eval_every` steps, and the best score so far."""

    def __init__(
        self, held_out: HeldOut, best: Best | None, reporter: Reporter, health: Health, watchdog: Watchdog, every: int
    ):
        """Evaluates nothing yet.

        Args:
            held_out: the split.
            best: the record of the best evaluation; None if the predictions have no score.
            reporter, health: what is told the result.
            watchdog: limits the time of each batch.
            every: steps between two evaluations; 0: only after the last one.
        """
        self._held_out, self._best, self._every = held_out, best, every
        self._reporter, self._health, self._watchdog = reporter, health, watchdog

    def between_steps(self, outcome: Outcome) -> None:
        """Evaluates if it is time, but not after a signal; ends a run that does not get better."""
        if outcome.is_stopped or not outcome.is_due(self._every):
            return
        number = outcome.number
        with self._watchdog.limit(f"evaluation after step {number}", "step_timeout_seconds") as limit:
            result = self._held_out(limit.restart)
            self._reporter.evaluation(number, result)
        if self._best:
            outcome.is_best = self._best.observe(number, result.scores[self._best.metric])
            outcome.is_last |= self._best.is_exhausted
        if outcome.is_best:
            self._reporter.predictions(self._held_out.scorer, result)
        if outcome.is_last:
            self._health.settle()
            self._health.observe_evaluation(number, result)


class Save(Observer):
    """Checkpoints: by steps, by the clock, of the best score, and the last one."""

    def __init__(
        self, checkpoints: Checkpoints, schedule: SaveSchedule, health: Health, best: Best | None, watchdog: Watchdog
    ):
        """Saves nothing yet.

        Args:
            checkpoints: of the run.
            schedule: says when one is due.
            health: after a step that is not finite, only the last checkpoint is saved, as one that no run goes on from.
            best: the record of the best evaluation, whose checkpoint is not removed.
            watchdog: limits the time of each save.
        """
        self._checkpoints, self._schedule, self._health = checkpoints, schedule, health
        self._best, self._watchdog, self._is_due = best, watchdog, False

    def request(self) -> float:
        """Returns 1 on the chief if its clock says that a checkpoint is due."""
        return self._schedule.request()

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Finds out whether a checkpoint is due, and then whether this step is finite."""
        self._is_due = self._schedule.is_due(outcome.number, request)
        if self._is_due:
            self._health.settle()

    def between_steps(self, outcome: Outcome) -> None:
        """Starts to save, if a checkpoint is due."""
        is_good = not self._health.problem
        if self._best:
            self._checkpoints.saves.keep_step = self._best.step
        if outcome.is_last or (is_good and (self._is_due or outcome.is_best)):
            with self._watchdog.limit(f"the checkpoint of step {outcome.number}", "save_timeout_seconds"):
                self._checkpoints.save(outcome.is_last, is_good)
            self._schedule.saved()

    def finish(self) -> None:
        """Waits for the last checkpoint."""
        with self._watchdog.limit("the last checkpoint", "save_timeout_seconds"):
            self._checkpoints.finish()
