"""What a run must remember: weights, moments, loss scale and counters, by global name.

The position in the data is `consumed_samples`: the order of the examples is a function of the seed and of that number.
"""

import tensorflow as tf

from tftrain.model.losses import LossSums


class Progress(tf.Module):
    """Counters of a run, on the device so that no step waits for the host.

    Attributes:
        step: int64, updates tried so far.
        consumed_samples: int64.
        skipped_steps: int64, updates left out because loss or gradient was not finite.
        nan_steps: int64, those of them that no smaller loss scale would have made finite.
        interval_sums: fp64 [len(LossSums)], loss sums since the last logged step, without those of NaN steps.
    """

    def __init__(self):
        """Starts every counter at zero."""
        super().__init__(name="progress")
        self.step, self.consumed_samples, self.skipped_steps, self.nan_steps = (
            tf.Variable(0, dtype=tf.int64, trainable=False, name=name)
            for name in ("step", "consumed_samples", "skipped_steps", "nan_steps")
        )
        self.interval_sums = tf.Variable(
            tf.zeros([len(LossSums._fields)], tf.float64), trainable=False, name="interval_sums"
        )

    def count(self, samples: int, sums: tf.Tensor, skipped: tf.Tensor, is_nan: tf.Tensor) -> None:
        """Adds one update of `samples` samples with its loss sums, fp32 [len(LossSums)], and what became of it."""
        finite = tf.reduce_all(tf.math.is_finite(sums))
        self.step.assign_add(1)
        self.consumed_samples.assign_add(samples)
        self.skipped_steps.assign_add(tf.cast(skipped, tf.int64))
        self.nan_steps.assign_add(tf.cast(is_nan, tf.int64))
        self.interval_sums.assign_add(tf.cast(tf.where(finite, sums, tf.zeros_like(sums)), tf.float64))

    def take_interval(self) -> LossSums:
        """Returns the loss sums since the last call and starts over."""
        sums = LossSums(*self.interval_sums.numpy().tolist())
        self.interval_sums.assign(tf.zeros_like(self.interval_sums))
        return sums

    def state(self) -> dict[str, tf.Variable]:
        """Returns the counters by the names they have in a checkpoint."""
        names = ("step", "consumed_samples", "skipped_steps", "nan_steps", "interval_sums")
        return {f"progress/{name}": getattr(self, name) for name in names}
