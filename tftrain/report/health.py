"""Watches loss and gradient norm of every step: non-finite values end the run, unusual values are spikes.

It checks each step one step later, so the device is already running the next step while the host waits for the values.
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
    """Watches the steps of a run."""

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
            settings: with max_nan_steps and spike_zscore.
            mesh: the ranks.
            mean_values: of the task, from its sums.
            culprit_name: returns the name of what was not finite, from a step's `culprit`.
            on_spike: called with each unusual step and its spike.
        """
        self._settings, self._mean_values = settings, mean_values
        self._culprit_name, self._on_spike = culprit_name, on_spike
        self._ranks = mesh.groups["model"]
        self._spikes = SpikeMonitor(settings.spike_zscore)
        self._waiting: list[tuple[int, StepInfo]] = []
        self._in_a_row = 0

    def observe(self, step: int, info: StepInfo, is_last: bool) -> None:
        """Queues a step and checks the one before it; checks this step too if it is the last.

        Raises:
            NotFiniteError: `max_nan_steps` consecutive steps were not finite; on every rank at the same step.
        """
        self._waiting.append((step, info))
        while len(self._waiting) > (0 if is_last else 1):
            self._check(*self._waiting.pop(0))

    def _check(self, step: int, info: StepInfo) -> None:
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
