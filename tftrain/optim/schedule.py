"""The learning rate of an update: linear warm-up to the peak, then polynomial decay to the end.

The decay starts where the warm-up ends, so `learning_rate` is reached exactly once, at step `warmup_steps`, and
`end_learning_rate` exactly at `max_steps`. The first update is not wasted on a learning rate of zero: it uses the
second one's, as tf-models' BERT pre-training does (`PolynomialWarmUp` over `PolynomialDecayWithOffset`).
"""

import tensorflow as tf

from tftrain.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, max_steps: int, step: tf.Tensor) -> tf.Tensor:
    """Returns the learning rate of the update that follows `step` applied updates.

    With W = warmup_steps, N = max_steps and s = min(step, N):
    peak * max(s, 1) / W while s < W, then (peak - end) * ((N - s) / (N - W)) ** decay_power + end.

    Args:
        config: peak, end, decay power and `warmup_steps`, which must be resolved (not None).
        max_steps: updates of the whole run.
        step: int64 scalar, the number of updates applied so far.

    Returns:
        fp32 scalar.

    Raises:
        ValueError: `warmup_steps` is None or larger than `max_steps`.
    """
    warmup = config.warmup_steps
    if warmup is None or warmup > max_steps:
        raise ValueError(f"--warmup_steps={warmup}: expected a number from 0 to max_steps={max_steps}")
    peak, end = config.learning_rate, config.end_learning_rate
    step = tf.minimum(tf.cast(step, tf.int64), max_steps)
    # Differences are taken among integers: in fp32, 1 - step / max_steps loses its digits at the end of a long run.
    remaining = tf.cast(max_steps - step, tf.float32) / max(max_steps - warmup, 1)
    decayed = (peak - end) * tf.pow(tf.minimum(remaining, 1.0), config.decay_power) + end
    warming = peak * tf.cast(tf.maximum(step, 1), tf.float32) / max(warmup, 1)
    return tf.where(step < warmup, warming, decayed)
