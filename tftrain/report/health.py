"""Watches loss and gradient norm of every step: non-finite values end the run, unusual values are spikes.

It checks each step one step later, so the device is already running the next step while the host waits for the values.

Spikes are steps whose loss or gradient norm lies far above its recent values. A z-score is the number of standard
deviations between a value and the mean; both are exponentially weighted towards recent steps. Only values above the
mean count, because a falling loss lies below it. A gradient norm varies by factors, so its logarithm is used. The
statistics are not saved: a resumed run collects them anew.
"""

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np

from tftrain.config.train import LimitsConfig
from tftrain.host.exit_codes import NotFiniteError
from tftrain.parallel.mesh import Mesh
from tftrain.report.rows import SpikeRow
from tftrain.run_state import Evaluation, StepInfo

logger = logging.getLogger(__name__)

DECAY = 0.99  # weight of the past in each step's mean: about the last hundred steps count
WARMUP = 50  # with fewer values, their spread is unknown
MIN_DEVIATION = 1e-3  # as a fraction of the mean: a series without noise has a standard deviation of 0


class Series:
    """A series of values, with the z-score of each among the values before it."""

    def __init__(self, limit: float):
        """Begins empty; a value with a z-score above `limit` is clipped before it enters the statistics."""
        self._limit, self._count, self._mean, self._variance = limit, 0, 0.0, 0.0

    def zscore(self, value: float) -> float:
        """Adds a finite value and returns its z-score among the values before it; 0 during the first WARMUP values."""
        mean, deviation = self._mean, math.sqrt(self._variance)
        deviation = max(deviation, MIN_DEVIATION * max(abs(mean), 1.0))
        known = self._count >= WARMUP
        score = (value - mean) / deviation if known else 0.0
        # One spike must not hide the next one; but many consecutive spikes become the new level.
        value = min(value, mean + self._limit * deviation) if known else value
        self._count += 1
        rate = max(1 - DECAY, 1 / self._count)
        change = value - mean
        self._mean += rate * change
        self._variance = (1 - rate) * (self._variance + rate * change * change)
        return score


class SpikeMonitor:
    """Watches the loss and the gradient norm of every step."""

    def __init__(self, zscore: float):
        """Reports steps from this z-score on; 0: none."""
        self._zscore = zscore or math.inf
        self._loss, self._log_norm = Series(self._zscore), Series(self._zscore)

    def observe(self, loss: float, grad_norm: float) -> tuple[float, float] | None:
        """Adds the values of the next step; returns both z-scores if one is high. Non-finite values are ignored."""
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            return None
        scores = self._loss.zscore(loss), self._log_norm.zscore(math.log(max(grad_norm, 1e-30)))
        return scores if max(scores) >= self._zscore else None


class Health:
    """Watches the steps of a run.

    `problem` says what was not finite in the last step that was checked; None if all was. Weights that gave such a loss
    may be spoiled although they are finite, so they are no checkpoint to go on from.
    """

    def __init__(
        self,
        settings: LimitsConfig,
        mesh: Mesh,
        mean_values: Callable[[Sequence[float]], dict[str, float]],
        culprit_name: Callable[[int], str],
        on_spike: Callable[[SpikeRow], None],
    ):
        """Begins before the first step.

        Args:
            settings, mesh: with max_nan_steps and spike_zscore, and with the ranks.
            mean_values, culprit_name: means of the task from its sums, and what was not finite from a step's `culprit`.
            on_spike: called with each unusual step.
        """
        self._settings, self._mean_values = settings, mean_values
        self._culprit_name, self._on_spike = culprit_name, on_spike
        self._ranks = mesh.groups["model"]
        self._spikes = SpikeMonitor(settings.spike_zscore)
        self._waiting: list[tuple[int, StepInfo]] = []
        self._in_a_row = 0
        self.problem: str | None = None

    def begin_phase(self) -> None:
        """Checks all steps of the phase before, whose losses say nothing about those that follow."""
        self.settle()
        self._spikes = SpikeMonitor(self._settings.spike_zscore)

    def observe(self, step: int, info: StepInfo, at_once: bool) -> None:
        """Queues a step and checks the one before it; with `at_once`, checks this step too, which waits for it.

        Raises:
            NotFiniteError: `max_nan_steps` consecutive steps were not finite; on every rank at the same step.
        """
        if self._waiting and info.before is not None:
            before, waiting = self._waiting.pop()
            self._waiting.append((before, waiting.read(info.before.numpy())))
        self._waiting.append((step, info))
        self.settle(0 if at_once else 1)

    def settle(self, left: int = 0) -> None:
        """Checks all but `left` of the waiting steps; `problem` is that of the last one; raises what `observe` does."""
        while len(self._waiting) > left:
            self._check(*self._waiting.pop(0))

    def observe_evaluation(self, step: int, result: Evaluation) -> None:
        """Checks the held-out loss after a step, which the training loss of that step says nothing about."""
        if result.examples and not math.isfinite(result.means["loss"]):
            self.problem = f"the held-out loss after step {step} is not"

    def _check(self, step: int, info: StepInfo) -> None:
        if not info.is_nan:
            self._in_a_row, self.problem = 0, None
            loss, norm = self._mean_values(np.asarray(info.sums).tolist())["loss"], float(info.grad_norm)
            if scores := self._spikes.observe(loss, norm):
                self._on_spike(SpikeRow(step, loss, scores[0], norm, scores[1]))
            return
        self._in_a_row += 1
        bad = [rank for place in np.flatnonzero(info.bad_ranks) for rank in self._ranks[place]]
        where = f" on {'ranks' if len(bad) > 1 else 'rank'} {', '.join(map(str, bad))}" if bad else ""
        self.problem = f"in step {step} {self._culprit_name(int(info.culprit))}{where} was not"
        if self._in_a_row == 1:
            logger.info(f"{self.problem} finite: the update is skipped; no checkpoint until a step is finite")
        if self._in_a_row >= self._settings.max_nan_steps:
            limit = f"--max_nan_steps={self._settings.max_nan_steps}"
            raise NotFiniteError(f"{limit} steps in a row were not finite; {self.problem}")
