"""The figures of every step: whether they are finite, and whether they are usual.

They are looked at one step late, so that the device has its next step before the host waits for the last one's figures.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tftrain.config import RunConfig
from tftrain.exit_codes import ExitCode, RunError
from tftrain.parallel.mesh import Mesh
from tftrain.report.spikes import Spike, SpikeMonitor
from tftrain.run_state import StepInfo


class NotFiniteError(RunError):
    """Too many steps in a row had a loss or gradient that is not finite; the message names it."""

    exit_code = ExitCode.NOT_FINITE


class Health:
    """Looks at the steps of a run."""

    def __init__(
        self,
        settings: RunConfig,
        mesh: Mesh,
        mean_values: Callable[[Sequence[float]], dict[str, float]],
        culprit_name: Callable[[int], str],
        on_spike: Callable[[int, Spike], None],
    ):
        """Begins before the first step.

        Args:
            settings: how many steps may not be finite, and what a spike is.
            mesh: the ranks.
            mean_values: of the task, from its sums.
            culprit_name: says in words what a step's `culprit` is.
            on_spike: called with every unusual step and its figures.
        """
        self._settings, self._mean_values = settings, mean_values
        self._culprit_name, self._on_spike = culprit_name, on_spike
        self._ranks = mesh.groups["model"]
        self._spikes = SpikeMonitor(settings.spike_zscore)
        self._waiting: list[tuple[int, StepInfo]] = []
        self._in_a_row = 0

    def observe(self, step: int, info: StepInfo, is_last: bool) -> None:
        """Takes a step, and looks at the one before it; at this one too if no other follows.

        Raises:
            NotFiniteError: `max_nan_steps` in a row were not finite; on every rank after the same step.
        """
        self._waiting.append((step, info))
        while len(self._waiting) > (0 if is_last else 1):
            self._look(*self._waiting.pop(0))

    def _look(self, step: int, info: StepInfo) -> None:
        if not info.is_nan.numpy():
            self._in_a_row = 0
            loss = self._mean_values(info.sums.numpy().tolist())["loss"]
            if spike := self._spikes.observe(loss, float(info.grad_norm)):
                self._on_spike(step, spike)
            return
        self._in_a_row += 1
        if self._in_a_row >= self._settings.max_nan_steps:
            bad = [rank for place in np.flatnonzero(info.bad_ranks) for rank in self._ranks[place]]
            where = f" on {'ranks' if len(bad) > 1 else 'rank'} {', '.join(map(str, bad))}" if bad else ""
            raise NotFiniteError(
                f"--max_nan_steps={self._settings.max_nan_steps} steps in a row were not finite; in step {step} "
                f"{self._culprit_name(int(info.culprit))}{where} was not. Go on from a checkpoint before them with "
                f"a lower --learning_rate or another --precision, or look for what is wrong in the data"
            )
