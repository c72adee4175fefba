"""The loss scale: it keeps small gradients above fp16's smallest numbers (arXiv 1710.03740).

The loss is multiplied by the scale before the backward pass, and the optimizer divides the gradients by it. A dynamic
scale doubles after many consecutive steps with finite gradients and halves after a step with a gradient that is not
finite. It is stored in variables, so it changes inside the graph, without a branch.
"""

import tensorflow as tf

from tftrain.config.compute import ComputeConfig
from tftrain.config.parallel import BatchConfig


class FixedLossScale(tf.Module):
    """A scale of 1: fp32 and bf16 gradients need none; for the methods, see `DynamicLossScale`."""

    smallest = 1.0

    @property
    def value(self) -> tf.Tensor:
        """The scale, fp32 scalar."""
        return tf.constant(1.0, tf.float32)

    def update(self, found_inf: tf.Tensor) -> None:
        """Does nothing."""

    def state(self) -> dict[str, tf.Variable]:
        """Returns nothing: a fixed scale has no variables."""
        return {}


class DynamicLossScale(tf.Module):
    """A scale that follows the gradients: doubled after many finite ones in a row, halved after one that is not."""

    def __init__(
        self, initial: float = 2.0**15, growth_interval: int = 2000, smallest: float = 1.0, largest: float = 2.0**24
    ):
        """Creates the scale of the first step, which doubles after `growth_interval` finite steps in a row.

        Without the upper bound, the scale would become infinite if all gradients were zero.
        """
        super().__init__(name="loss_scale")
        self.growth_interval, self.smallest, self.largest = growth_interval, smallest, largest
        self._scale = tf.Variable(initial, dtype=tf.float32, trainable=False, name="loss_scale/scale")
        self._good_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="loss_scale/good_steps")

    @property
    def value(self) -> tf.Tensor:
        """The scale, fp32 scalar."""
        return self._scale.read_value()

    def update(self, found_inf: tf.Tensor) -> None:
        """Moves to the next step's scale; `found_inf` says whether the gradients held an inf or a NaN, bool scalar."""
        scale = self._scale.read_value()
        good_steps = tf.where(found_inf, tf.constant(0, tf.int64), self._good_steps + 1)
        grow = good_steps >= self.growth_interval
        factor = tf.where(found_inf, 0.5, tf.where(grow, 2.0, 1.0))
        self._scale.assign(tf.clip_by_value(scale * factor, self.smallest, self.largest))
        self._good_steps.assign(tf.where(grow, tf.constant(0, tf.int64), good_steps))

    def state(self) -> dict[str, tf.Variable]:
        """Returns the variables that a checkpoint must hold, by name."""
        return {"loss_scale/scale": self._scale, "loss_scale/good_steps": self._good_steps}


LossScale = FixedLossScale | DynamicLossScale


def make_loss_scale(compute: ComputeConfig, batch: BatchConfig) -> LossScale:
    """Returns a dynamic scale if gradients are fp16 in the model, in buffers, or between ranks; else a fixed one."""
    buffers = batch.grad_accum_dtype if batch.grad_accum_steps > 1 else "fp32"
    if compute.precision == "fp16" or compute.hvd_fp16_compression or buffers == "fp16":
        return DynamicLossScale()
    return FixedLossScale()
