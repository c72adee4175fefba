"""The mathematics of one update: pure functions over fp32 tensors, with no state.

AdamW (arXiv 1711.05101) moves a weight w against the direction u = m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w.
LAMB (arXiv 1904.00962) moves against the same u, scaled in each tensor by its trust ratio |w| / |u|. Everything but
those two norms is element by element, so each function here serves a whole tensor, a shard of one, or a flat bucket of
many; the squared norms come in as arguments, and may be a vector over tensors that a sharded caller sums over ranks.

A skipped update takes no branch, hence no round trip to the host and no extra pass over the weights: the scalars
become such that every formula returns its input, bit for bit (x * 1 - 0), and `multiply_no_nan` keeps a non-finite
gradient out.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from tftrain.config import OptimizerConfig


class Scalars(NamedTuple):
    """The fp32 scalars of one update, computed once for all tensors."""

    gradient_factor: tf.Tensor  # loss scale and clipping in one factor; 0: skip
    learning_rate: tf.Tensor  # 0: skip
    beta1: tf.Tensor  # 1: skip
    beta2: tf.Tensor
    minus_one_minus_beta1: tf.Tensor  # beta1 - 1, or 0: skip
    one_minus_beta2: tf.Tensor
    m_correction: tf.Tensor  # 1 / (1 - beta1 ** t)
    v_correction: tf.Tensor
    epsilon: float


def squared_norm(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of squares of an fp32 tensor of any shape, as an fp32 scalar."""
    return 2.0 * tf.nn.l2_loss(tensor)


def scalars(
    config: OptimizerConfig, learning_rate: tf.Tensor, step: tf.Tensor, gradient_factor: tf.Tensor, skip: tf.Tensor
) -> Scalars:
    """Prepares what all tensors of one update share.

    Args:
        config: betas and epsilon.
        learning_rate: fp32 scalar.
        step: int64 scalar, updates applied before this one.
        gradient_factor: fp32 scalar that every gradient is multiplied by.
        skip: bool scalar; if true, the update leaves weights and moments as they are.

    Returns:
        The scalars, those of an identity where `skip`.
    """
    time = tf.cast(step + 1, tf.float32)

    def unless_skipped(value, otherwise):
        return tf.where(skip, tf.constant(otherwise, tf.float32), value)

    def correction(beta):
        # 1 - beta ** t without its cancellation: at t = 1, beta2 = 0.999, fp32 would be left with 4 digits.
        return 1.0 / -tf.math.expm1(time * (math.log(beta) if beta else -math.inf))

    beta1, beta2 = config.adam_beta1, config.adam_beta2
    return Scalars(
        gradient_factor=unless_skipped(gradient_factor, 0.0),
        learning_rate=unless_skipped(learning_rate, 0.0),
        beta1=unless_skipped(beta1, 1.0),
        beta2=unless_skipped(beta2, 1.0),
        minus_one_minus_beta1=unless_skipped(beta1 - 1.0, 0.0),
        one_minus_beta2=unless_skipped(1.0 - beta2, 0.0),
        m_correction=correction(beta1),
        v_correction=correction(beta2),
        epsilon=config.adam_epsilon,
    )


def next_moments(gradient: tf.Tensor, m: tf.Tensor, v: tf.Tensor, at: Scalars) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns beta1 * m + (1 - beta1) * g and beta2 * v + (1 - beta2) * g ** 2, with g = gradient * gradient_factor.

    Args:
        gradient, m, v: fp32 tensors of one shape.
        at: the update's scalars.

    Returns:
        The new m and v, fp32 of the same shape.
    """
    gradient = tf.math.multiply_no_nan(gradient, at.gradient_factor)
    # A difference, not a sum: -0.0 - 0.0 is -0.0, whereas -0.0 + 0.0 is not.
    m = m * at.beta1 - gradient * at.minus_one_minus_beta1
    v = v * at.beta2 + tf.square(gradient) * at.one_minus_beta2
    return m, v


def direction(weight: tf.Tensor, m: tf.Tensor, v: tf.Tensor, at: Scalars, weight_decay: float) -> tf.Tensor:
    """Returns m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w: AdamW's step before the learning rate.

    Args:
        weight, m, v: fp32 tensors of one shape, m and v being the new moments.
        at: the update's scalars.
        weight_decay: decoupled decay; 0 for excluded tensors.

    Returns:
        fp32, of the same shape.
    """
    adam = (m * at.m_correction) / (tf.sqrt(v * at.v_correction) + at.epsilon)
    return adam + weight_decay * weight if weight_decay else adam


def trust_ratio(weight_square: tf.Tensor, update_square: tf.Tensor) -> tf.Tensor:
    """Returns LAMB's |w| / |u|, and 1 where either norm is zero.

    Args:
        weight_square, update_square: squared norms over the whole tensor; fp32 scalars, or vectors over tensors.

    Returns:
        fp32, of the same shape.
    """
    both = tf.logical_and(weight_square > 0, update_square > 0)
    weight_norm, update_norm = tf.sqrt(weight_square), tf.sqrt(tf.where(both, update_square, 1.0))
    return tf.where(both, weight_norm / update_norm, 1.0)


def next_weight(weight: tf.Tensor, update: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
    """Returns w - rate * u, and exactly w where the rate is 0.

    Args:
        weight, update: fp32 tensors of one shape.
        rate: fp32 scalar, the learning rate, times the trust ratio for LAMB.

    Returns:
        fp32, of the same shape.
    """
    return weight - tf.math.multiply_no_nan(update, rate)
