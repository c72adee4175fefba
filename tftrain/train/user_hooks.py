"""The observer that calls a user's hooks (`tftrain.hooks`); an error in one is named and ends nothing else."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from tftrain.checkpoint.folder import order
from tftrain.hooks import Context, Hook, StepResult
from tftrain.host.exit_codes import ExitCode
from tftrain.observe.watchdog import Watchdog
from tftrain.state.run_state import Run, StepInfo
from tftrain.state.saves import Saves
from tftrain.supervise.signals import Signals
from tftrain.train.observers import Decision, Observer, TakenStep

logger = logging.getLogger(__name__)


class UserHooks(Observer):
    """A run's hooks, in the order of --hooks; `has_failed`: one that is required has raised."""

    def __init__(self, run: Run, classes: Sequence[type[Hook]], saves: Saves, signals: Signals, watchdog: Watchdog):
        """Makes an instance of each class; `signals` end the run on all ranks, the watchdog limits each call."""
        mesh, names, self._stop, self._watchdog = run.mesh, run.whole.run.hooks, signals.stop, watchdog
        self._run, self._saves, self._step, self.has_failed = run, saves, int(run.progress.step), False
        self._announced = None  # the newest checkpoint that hooks know
        context = Context(run.whole, mesh.rank, mesh.size, run.task.model, self._step, self._stop)
        self._hooks: list[tuple[str, Hook]] = []
        for name, hook_class in zip(names, classes, strict=True):
            self._hooks += [(name, hook) for hook in self._try(name, hook_class, "__init__", hook_class, context)]

    def begin(self, step: TakenStep, decision: Decision) -> None:
        """Calls `on_evaluation`, if an evaluation was made up for."""
        if decision.evaluation:
            self.between_steps(step, decision)

    def request(self) -> dict[str, float]:
        """Calls `before_step`."""
        self._call("before_step", self._step + 1)
        return {}

    def after_step(self, step: TakenStep, decision: Decision) -> None:
        """Calls `after_step`."""
        self._step = step.number
        self._call("after_step", step.number, StepResult(lambda: self._metrics(step.info)))

    def between_steps(self, step: TakenStep, decision: Decision) -> None:
        """Calls `on_evaluation` and `on_checkpoint`, if there is something new."""
        if decision.evaluation:
            self._call("on_evaluation", step.number, {**decision.evaluation.means, **decision.evaluation.scores})
        self._checkpoint()

    def go_back(self, step: int) -> None:
        """Goes on with the step after this one; a newer checkpoint that hooks do not know yet is set aside."""
        self._step, newest = step, self._saves.newest
        if newest and order(newest)[0] > step:
            self._announced = newest

    def finish(self) -> ExitCode:
        """Calls `on_checkpoint` for the last checkpoint, and `on_end`; FAILED if a required hook has raised."""
        self._checkpoint()
        self._call("on_end", self._step)
        return ExitCode.FAILED if self.has_failed else ExitCode.DONE

    def _checkpoint(self) -> None:
        newest = self._saves.newest
        if newest and newest is not self._announced:  # After a rollback, another one has the same name.
            self._announced = newest
            self._call("on_checkpoint", order(newest)[0], newest)

    def _call(self, method: str, *args) -> None:
        for name, hook in list(self._hooks):
            self._try(name, hook, method, getattr(hook, method), *args)

    def _try(self, name: str, hook: Hook | type[Hook], method: str, function: Callable, *args) -> list:
        """Returns the result in a list; an error is named in the log, and drops the hook."""
        try:
            with self._watchdog.limit(f"--hooks={name}: {method}", "step_timeout_seconds"):
                return [function(*args)]
        except Exception as error:  # The user's own code may raise anything.
            self._hooks = [each for each in self._hooks if each[1] is not hook]
            end = "the run stops" if hook.required else "it is not called again"
            words = f"--hooks={name}: {method} raised {type(error).__name__}: {error}"
            logger.error(f"{words}; {end}", exc_info=error)
            if hook.required:
                self.has_failed = True
                self._stop(words)
            return []

    def _metrics(self, info: StepInfo) -> dict[str, float]:
        names = ("learning_rate", "grad_norm", "loss_scale", "skipped")
        return self._run.task.mean_values(np.asarray(info.sums)) | {name: float(getattr(info, name)) for name in names}
