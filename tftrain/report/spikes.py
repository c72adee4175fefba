"""Spikes: steps whose loss or gradient norm lies far above its recent values.

A z-score is the number of standard deviations between a value and the mean; both are exponentially weighted towards
recent steps. Only values above the mean count, because a falling loss lies below it. A gradient norm varies by factors,
so its logarithm is used. The statistics are not saved: a resumed run collects them anew.
"""

import math
from typing import NamedTuple

# Weight of the past in each step's mean: about the last hundred steps count.
DECAY = 0.99
# With fewer values, their spread is unknown.
WARMUP = 50
# As a fraction of the mean: a series without noise has a standard deviation of 0.
MIN_DEVIATION = 1e-3


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


class Spike(NamedTuple):
    """An unusual step: its loss and gradient norm, each with its z-score."""

    loss: float
    loss_zscore: float
    grad_norm: float
    grad_norm_zscore: float


class SpikeMonitor:
    """Watches the loss and the gradient norm of every step."""

    def __init__(self, zscore: float):
        """Reports steps from this z-score on; 0: none."""
        self._zscore = zscore or math.inf
        self._loss, self._log_norm = Series(self._zscore), Series(self._zscore)

    def observe(self, loss: float, grad_norm: float) -> Spike | None:
        """Adds the values of the next step; returns a spike if one is unusual. Non-finite values are ignored."""
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            return None
        spike = Spike(loss, self._loss.zscore(loss), grad_norm, self._log_norm.zscore(math.log(max(grad_norm, 1e-30))))
        return spike if max(spike.loss_zscore, spike.grad_norm_zscore) >= self._zscore else None
