"""Which steps are spikes: loss or gradient norm lies far above its recent values.

A z-score is the number of standard deviations between a value and the mean; both are exponentially weighted towards
recent steps. Only values above the mean count, because a falling loss lies below it. A gradient norm varies by factors,
so its logarithm is used.

Spikes do not enter the statistics. When they are many, the statistics begin again, with the new level.

A step is judged by the steps up to the second one before it: when a step begins, the host knows no others, and a step
that leaves out the update of a spike must know the limits then. So it does not matter when the values of a step are
read. The statistics are part of a checkpoint, so a resumed run judges as an uninterrupted one.
"""

import copy
import math

import msgspec

DECAY = 0.99  # weight of the past in each step's mean: about the last hundred steps count
WARMUP = 50  # with fewer values, their spread is unknown
MIN_DEVIATION = 1e-3  # as a fraction of the mean: a series without noise has a standard deviation of 0
MOST_IN_A_ROW = 20  # spikes, or as many among the steps before; then they are a new level, which no skip would end
_NEW_LEVEL = 1 - DECAY ** (MOST_IN_A_ROW - 1.5)  # share of spikes; one less in a row is known when a step begins
_LARGEST_LOG = 88.0  # of an fp32 number


class Series(msgspec.Struct):
    """Statistics of a series of values."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation, or a little where the series has none."""
        return max(math.sqrt(self.variance), MIN_DEVIATION * max(abs(self.mean), 1.0))

    def zscore(self, value: float) -> float:
        """Returns the z-score of a finite value among those of the series; 0 if these are fewer than WARMUP."""
        return (value - self.mean) / self.deviation if self.count >= WARMUP else 0.0

    def limit(self, zscore: float) -> float:
        """Returns the value that has a z-score."""
        return self.mean + zscore * self.deviation if self.count >= WARMUP else math.inf

    def add(self, value: float) -> None:
        """Adds a finite value."""
        self.count += 1
        rate = max(1 - DECAY, 1 / self.count)
        change = value - self.mean
        self.mean += rate * change
        self.variance = (1 - rate) * (self.variance + rate * change * change)


class Step(msgspec.Struct):
    """The values of a step that are not in the statistics yet."""

    loss: float
    log_norm: float
    is_spike: bool


class SpikeStatistics(msgspec.Struct):
    """What a checkpoint holds."""

    loss: Series = msgspec.field(default_factory=Series)
    log_norm: Series = msgspec.field(default_factory=Series)
    share: float = 0.0  # of spikes among recent steps, weighted as these are
    latest: Step | None = None


class SpikeMonitor:
    """Watches the loss and the gradient norm of every step; equal on all ranks."""

    def __init__(self, zscore: float):
        """Begins without values. Steps are spikes from this z-score on; 0: none is."""
        self._zscore = zscore or math.inf
        self.statistics = SpikeStatistics()

    def observe(self, loss: float, grad_norm: float) -> tuple[float, float] | None:
        """Adds the values of the next step; returns both z-scores if it is a spike. Not if one is not finite."""
        now = self.statistics
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            self._add_latest(now)
            return None
        log_norm = math.log(max(grad_norm, 1e-30))
        scores = now.loss.zscore(loss), now.log_norm.zscore(log_norm)
        self._add_latest(now)
        now.latest = Step(loss, log_norm, max(scores) >= self._zscore)
        return scores if now.latest.is_spike else None

    def limits(self, is_late: bool) -> tuple[float, float]:
        """Returns the loss and the gradient norm from which on the next step is a spike; inf if none can be one.

        `is_late` says whether the last step was not observed yet.
        """
        then = copy.deepcopy(self.statistics)
        if is_late:
            self._add_latest(then)
        log_norm = then.log_norm.limit(self._zscore)
        return then.loss.limit(self._zscore), math.exp(log_norm) if log_norm < _LARGEST_LOG else math.inf

    def _add_latest(self, statistics: SpikeStatistics) -> None:
        latest, statistics.latest = statistics.latest, None
        if latest is None:
            return
        statistics.share += (1 - DECAY) * (latest.is_spike - statistics.share)
        if not latest.is_spike:  # One spike must not hide the next one.
            statistics.loss.add(latest.loss)
            statistics.log_norm.add(latest.log_norm)
        elif statistics.share > _NEW_LEVEL:
            statistics.loss, statistics.log_norm, statistics.share = Series(), Series(), 0.0
