"""The learning rate of an update: linear warm-up to the peak, then decay to the end, polynomial or another.

The decay starts where the warm-up ends, so `learning_rate` is reached exactly once, at step `warmup_steps`, and
`end_learning_rate` exactly at `max_steps`. The first update does not have a learning rate of zero: it uses that of the
second update, as tf-models' BERT pre-training does (`PolynomialWarmUp` over `PolynomialDecayWithOffset`).

With a batch ramp, also in one phase only (`tftrain.config.phases`), the schedule counts samples, as Megatron-LM
does with `--rampup-batch-size`: an early update has a small batch, so it advances the schedule less. `warmup_steps` and
`max_steps` are still numbers of updates. They are converted to the numbers of samples that those updates consume.
"""

import itertools
import math
from typing import NamedTuple

import tensorflow as tf

from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.phases import Timeline


class RampedSteps(NamedTuple):
    """The length of a run whose schedule counts samples: its updates, and the batch sizes that they have."""

    max_steps: int
    ramp: Timeline


def run_length(max_steps: int, batches: Timeline) -> int | RampedSteps:
    """Returns the length of a run of resolved configuration, as `learning_rate` takes it."""
    has_ramp = any(phase.batch.batch_rampup != "none" for phase in batches.phases)
    return RampedSteps(max_steps, batches) if has_ramp else max_steps


def learning_rate(config: OptimizerConfig, max_steps: int | RampedSteps, step: tf.Tensor) -> tf.Tensor:
    """Returns the learning rate of the update that follows `step` applied updates, fp32 scalar.

    With W = warmup_steps, N = max_steps and s = min(step, N):
    peak * max(s, 1) / W while s < W, then (peak - end) * shape + end, where the shape is

    - polynomial: r ** decay_power with r = (N - s) / (N - W);
    - cosine: (1 + cos(pi (1 - r))) / 2 (Loshchilov and Hutter, arXiv 1608.03983, without restarts);
    - constant: 1;
    - wsd, "warm-up, stable, decay" (Hu et al., arXiv 2404.06395): min((N - s) / D, 1) ** decay_power, D = decay_steps;
    - inverse_sqrt (Vaswani et al., arXiv 1706.03762): sqrt(max(W, 1) / max(s, 1)).

    With a ramp, W, N, D, s and the 1 are numbers of samples, those that so many updates consume from the start.
    Skipped updates do not count, with or without a ramp. So with a ramp, s equals consumed_samples only if no update
    was skipped.

    Args:
        config: resolved, so that `warmup_steps` and, for wsd, `decay_steps` are not None.
        max_steps: updates of the whole run, with the ramp if there is one.
        step: int64 scalar, the number of updates applied so far.

    Raises:
        ValueError: `warmup_steps` is None or larger than `max_steps`.
    """
    warmup, first = config.warmup_steps, 1
    max_steps, ramp = max_steps if isinstance(max_steps, RampedSteps) else (max_steps, None)
    if warmup is None or warmup > max_steps:
        raise ValueError(f"--warmup_steps={warmup}: expected a number from 0 to --max_steps={max_steps}")
    peak, end, stable = config.learning_rate, config.end_learning_rate, max_steps - (config.decay_steps or 0)
    step = tf.minimum(tf.cast(step, tf.int64), max_steps)
    if ramp:
        first, warmup, stable, max_steps = map(ramp.samples_after, (first, warmup, stable, max_steps))
        step = _samples_after(ramp, step)
    begin = stable if config.schedule == "wsd" else warmup
    # Subtract integers: in fp32, 1 - step / max_steps loses its digits at the end of a long run.
    remaining = tf.minimum(tf.cast(max_steps - step, tf.float32) / max(max_steps - begin, 1), 1.0)
    if config.schedule == "cosine":
        shape = 0.5 - 0.5 * tf.cos(math.pi * remaining)
    elif config.schedule == "constant":
        shape = 1.0
    elif config.schedule == "inverse_sqrt":
        shape = tf.sqrt(max(warmup, first) / tf.cast(tf.maximum(step, first), tf.float32))
    else:
        shape = tf.pow(remaining, config.decay_power)
    decayed = (peak - end) * shape + end
    warming = peak * tf.cast(tf.maximum(step, first), tf.float32) / max(warmup, 1)
    return tf.where(step < warmup, warming, decayed)


def _samples_after(ramp: Timeline, steps: tf.Tensor) -> tf.Tensor:
    """Does what `ramp.samples_after` does, with int64 scalars on the device."""
    stages = ramp.stages()
    sizes = [0, *(stage.batch_size for stage in stages)]
    growth = tf.constant([size - before for before, size in itertools.pairwise(sizes)], tf.int64)
    # Every update from a stage's first on has the samples by which the batch grew there.
    updates = tf.maximum(steps - tf.constant([stage.first_step for stage in stages], tf.int64), 0)
    return tf.reduce_sum(growth * updates)
