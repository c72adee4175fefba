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
_LARGEST_LOG = 88.0  # nearly that of the largest fp32 number


class SeriesStatistics(msgspec.Struct):
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


class SpikeStatistics(msgspec.Struct):
    """What a checkpoint holds; `latest` is the last step, not in the series yet, and whether it was a spike."""

    loss: SeriesStatistics = msgspec.field(default_factory=SeriesStatistics)
    log_norm: SeriesStatistics = msgspec.field(default_factory=SeriesStatistics)
    share: float = 0.0  # Spikes among recent steps, weighted as these are.
    latest: tuple[float, float, bool] | None = None


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
            _add_latest(now)
            return None
        log_norm = math.log(max(grad_norm, 1e-30))
        scores = now.loss.zscore(loss), now.log_norm.zscore(log_norm)
        is_spike = max(scores) >= self._zscore
        _add_latest(now)
        now.latest = loss, log_norm, is_spike
        return scores if is_spike else None

    def limits(self, is_late: bool) -> tuple[float, float]:
        """Returns loss and gradient norm that make the next step a spike; `is_late`: the last one is not observed."""
        then = copy.deepcopy(self.statistics)
        if is_late:
            _add_latest(then)
        return then.loss.limit(self._zscore), math.exp(min(then.log_norm.limit(self._zscore), _LARGEST_LOG))


def _add_latest(statistics: SpikeStatistics) -> None:
    if statistics.latest is None:
        return
    (loss, log_norm, is_spike), statistics.latest = statistics.latest, None
    statistics.share += (1 - DECAY) * (is_spike - statistics.share)
    if not is_spike:  # One spike must not hide the next one.
        statistics.loss.add(loss)
        statistics.log_norm.add(log_norm)
    elif statistics.share > _NEW_LEVEL:
        statistics.loss, statistics.log_norm, statistics.share = SeriesStatistics(), SeriesStatistics(), 0.0
