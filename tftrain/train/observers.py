"""What happens around the steps of a run: observers in one order, and what they decide after a step.

The loop calls them in the order watch, health, pipeline trace, report, evaluate, save, memory trace, a user's hooks,
limits. The order matters: a signal makes a step the last one before the report writes its row, and a checkpoint is
saved only if health found nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tftrain.host.exit_codes import ExitCode
from tftrain.observe.health import Health
from tftrain.observe.reporter import Reporter
from tftrain.observe.watchdog import Watchdog
from tftrain.state.best import Best
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.run_state import Evaluation, StepInfo
from tftrain.state.schedule import SaveSchedule
from tftrain.supervise.signals import Signals
from tftrain.train.held_out import HeldOut


@dataclass
class Outcome:
    """A step, and what was decided after it; equal on all ranks."""

    number: int  # updates so far, this one included
    info: StepInfo
    is_last: bool  # whether no step follows; an observer may set it
    is_stopped: bool = False  # whether a signal asked for the end
    goes_back: bool = False  # whether the run goes back to a checkpoint before it goes on
    is_best: bool = False  # whether the evaluation after the step has the best score so far
    evaluation: Evaluation | None = None  # after the step, if there was one

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

    def go_back(self, step: int) -> None:
        """Forgets what came after a step, whose checkpoint the run goes on from."""

    def finish(self) -> None:
        """Ends what is under way, after the last step."""


@dataclass
class Watch(Observer):
    """A signal to any rank ends the run after the step."""

    signals: Signals

    def request(self) -> float:
        """Returns the number of this rank's signal, or 0."""
        return self.signals.received

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Makes the step the last one, if a rank has received a signal."""
        outcome.is_stopped = self.signals.stop_requested(int(request))
        outcome.is_last |= outcome.is_stopped


@dataclass
class Limit(Observer):
    """A number that the step needs, and that is the same on all ranks: a request, which no observer acts on."""

    value: Callable[[], float]

    def request(self) -> float:
        """Returns the number."""
        return self.value()


@dataclass
class AfterStep(Observer):
    """A function that is called with each outcome."""

    function: Callable[[Outcome], None]

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Calls the function."""
        self.function(outcome)


@dataclass
class Evaluate(Observer):
    """The held-out split every so many steps, 0 for only after the last one; and the best score so far, if any."""

    held_out: HeldOut | None  # of the phase that runs; None: it has none
    best: Best | None
    reporter: Reporter
    health: Health
    watchdog: Watchdog
    every: int

    def between_steps(self, outcome: Outcome) -> None:
        """Evaluates if it is time, but not after a signal or a spike; ends a run that does not get better."""
        if self.held_out is None or outcome.is_stopped or self.health.spike or not outcome.is_due(self.every):
            return
        number = outcome.number
        name = f"evaluation after step {number}"
        with self.watchdog.limit(name, "step_timeout_seconds", kind="evaluation") as limit:
            result = self.held_out(limit.restart)
            self.reporter.evaluation(number, result)
        outcome.evaluation = result
        if self.best:
            outcome.is_best = self.best.observe(number, result.scores[self.best.metric])
            outcome.is_last |= self.best.is_exhausted
        if outcome.is_best:
            self.reporter.predictions(self.held_out.scorer, result)
        if outcome.is_last:
            self.health.settle()
            self.health.observe_evaluation(number, result)

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
    is_due: bool = False

    def request(self) -> float:
        """Returns 1 on the chief if its clock says that a checkpoint is due."""
        return self.schedule.request()

    def after_step(self, outcome: Outcome, request: float) -> None:
        """Finds out whether a checkpoint is due, and then whether this step is finite."""
        self.is_due = self.schedule.is_due(outcome.number, request)
        if self.is_due or self.checkpoints.in_memory.is_due(outcome.number):
            self.health.settle()

    def between_steps(self, outcome: Outcome) -> None:
        """Starts to save, if a checkpoint is due."""
        if outcome.is_best:
            self.health.settle()
        outcome.goes_back = self.health.spike is not None
        if outcome.goes_back:
            return
        is_good = not self.health.problem
        if self.best:
            self.checkpoints.saves.keep_step = self.best.step
        if outcome.is_last or (is_good and (self.is_due or outcome.is_best)):
            name = f"the checkpoint of step {outcome.number}"
            with self.watchdog.limit(name, "save_timeout_seconds", kind="checkpoints"):
                self.checkpoints.save(outcome.is_last, is_good)
            self.schedule.saved()
        if is_good and not outcome.is_last and self.checkpoints.in_memory.is_due(outcome.number):
            name = f"the copy of step {outcome.number} in memory"
            with self.watchdog.limit(name, "save_timeout_seconds", kind="checkpoints"):
                self.checkpoints.save_in_memory()

    def go_back(self, step: int) -> None:
        """Forgets what is due: its step comes again."""
        self.schedule.saved()

    def finish(self) -> None:
        """Waits for the last checkpoint."""
        with self.watchdog.limit("the last checkpoint", "save_timeout_seconds", kind="checkpoints"):
            self.checkpoints.saves.finish()
            self.checkpoints.in_memory.end()
