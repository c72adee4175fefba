"""Loss spikes: a step whose loss or gradient norm lies far above what the last few hundred were like.

A z-score says how many standard deviations a value lies above the mean, both weighted exponentially towards the recent
past. A falling loss lies below the mean, so only what is above counts. The norm of a gradient varies by factors: its
logarithm is looked at. Nothing of this is saved: a run that goes on from a checkpoint learns what is usual anew.
"""

import math
from typing import NamedTuple

# Weight of the past in each step's mean: about the last hundred steps count.
DECAY = 0.99
# Before so many values nothing is known of how far they spread.
WARMUP = 50
# In parts of the mean: a series without any noise has no deviation to measure by.
SMALLEST_DEVIATION = 1e-3


class Series:
    """Values of one kind, and how unusual each is beside those before it."""

    def __init__(self, limit: float):
        """Begins empty; `limit` is the z-score up to which a value counts with all its weight."""
        self._limit, self._count, self._mean, self._variance = limit, 0, 0.0, 0.0

    def zscore(self, value: float) -> float:
        """Takes a finite value and returns its z-score among those before it; 0 while there are few."""
        mean, deviation = self._mean, math.sqrt(self._variance)
        deviation = max(deviation, SMALLEST_DEVIATION * max(abs(mean), 1.0))
        known = self._count >= WARMUP
        score = (value - mean) / deviation if known else 0.0
        # One spike must not make the next look usual; many in a row are a new level, and do.
        value = min(value, mean + self._limit * deviation) if known else value
        self._count += 1
        rate = max(1 - DECAY, 1 / self._count)
        change = value - mean
        self._mean += rate * change
        self._variance = (1 - rate) * (self._variance + rate * change * change)
        return score


class Spike(NamedTuple):
    """A step that was unusual: its loss and gradient norm, each with its z-score."""

    loss: float
    loss_zscore: float
    grad_norm: float
    grad_norm_zscore: float


class SpikeMonitor:
    """Watches the loss and the gradient norm of every step."""

    def __init__(self, zscore: float):
        """Calls a step unusual from this z-score on; 0: never."""
        self._zscore = zscore or math.inf
        self._loss, self._log_norm = Series(self._zscore), Series(self._zscore)

    def observe(self, loss: float, grad_norm: float) -> Spike | None:
        """Takes the next step's figures and returns them if they are unusual; those that are not finite are not."""
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            return None
        spike = Spike(loss, self._loss.zscore(loss), grad_norm, self._log_norm.zscore(math.log(max(grad_norm, 1e-30))))
        return spike if max(spike.loss_zscore, spike.grad_norm_zscore) >= self._zscore else None
