"""Your own code around the steps of a run: `--hooks=my_module:MyHook`; docs/hooks.md has an example.

    from tftrain.hooks import Hook

    class MyHook(Hook):
        def after_step(self, step, result):
            if step % 100 == 0 and self.context.rank == 0:
                print(step, result.metrics()["loss"])

Every rank makes an instance, and calls its methods after the same steps; so a method may have collectives, if it has
them on all ranks. A method that raises is named in the log, and the hook is not called again on that rank; the run goes
on, or stops with its state saved if the hook is `required`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tf_keras

from tftrain.config.train import TrainConfig
from tftrain.host import user_code


class Context(NamedTuple):
    """The run, as a hook sees it."""

    config: TrainConfig  # resolved
    rank: int  # this process, from 0
    ranks: int
    model: tf_keras.Model  # this rank's part; its variables are those that steps update
    first_step: int  # updates that were done when the run started or went on
    stop: Callable[[str], None]  # ends the run on all ranks after a step, given the reason; its state is saved


class StepResult:
    """What an update gave; the same on every rank."""

    def __init__(self, read: Callable[[], dict[str, float]]):
        self._read = read

    def metrics(self) -> dict[str, float]:
        """Returns the step's losses in nats, learning_rate, grad_norm, loss_scale, and skipped (0 or 1).

        This waits for the device, so call it in few steps only.
        """
        return self._read()


class Hook:
    """Base class; override what you need.

    Attributes:
        required: whether the run stops when a method raises.
        context: the run.
    """

    required = False

    def __init__(self, context: Context):
        """Keeps the context; called before the first step."""
        self.context = context

    def before_step(self, step: int) -> None:
        """Called before update number `step`, from 1."""

    def after_step(self, step: int, result: StepResult) -> None:
        """Called when update number `step` is under way on the device."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after an evaluation on the held-out split, with its losses in nats and its scores."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Called on rank 0 alone, when the checkpoint of a step is complete in `folder`."""

    def on_end(self, step: int) -> None:
        """Called after the last step, number `step`, and its checkpoint; not after an error."""


def load(names: Sequence[str]) -> list[type[Hook]]:
    """Returns the classes of --hooks; a UserCodeError says which one can't be used and why."""
    return [user_code.load("hooks", name, Hook) for name in names]
