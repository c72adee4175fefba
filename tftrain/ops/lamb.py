"""LAMB (arXiv 1904.00962) and AdamW (arXiv 1711.05101) over all variables at once, in place on the device.

LAMB takes two passes: `lamb_moments` updates the moments and returns the sums of squares for the trust ratios, and
`lamb_weights` updates the weights. Between them a caller with shards sums the squares over ranks, in one small vector.
AdamW needs one pass. A gradient factor of 0 skips the update.

Weights and moments are fp32. Gradients are read in the dtype that they have. The pass over the weights also writes
them, rounded, to their 16-bit copies, so that no cast reads all of them once more.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tftrain.ops.library import library


class UpdateScalars(NamedTuple):
    """The fp32 scalars of one update, which all tensors share; numbers or scalar tensors."""

    gradient_factor: tf.Tensor  # loss scale and clipping in one factor; 0: skip
    learning_rate: tf.Tensor
    beta1: tf.Tensor
    beta2: tf.Tensor
    minus_one_minus_beta1: tf.Tensor  # beta1 - 1
    one_minus_beta2: tf.Tensor
    m_correction: tf.Tensor  # 1 / (1 - beta1 ** t)
    v_correction: tf.Tensor

    def pack(self) -> tf.Tensor:
        """Returns the input that ops take, fp32 [8]."""
        return tf.stack([tf.cast(value, tf.float32) for value in self])


class Squares(NamedTuple):
    """Sums of squares of each tensor, or each segment; fp32 [n]."""

    weights: tf.Tensor
    updates: tf.Tensor


def squared_norms(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of squares of each tensor, bit-equal in every run.

    Args:
        tensors: n tensors of any shape, each fp32, fp16 or bf16.

    Returns:
        fp32 [n].
    """
    return library().tftrain_squared_norms(tensors=list(tensors))


def lamb_moments(
    gradients: Sequence[tf.Tensor],
    m: Sequence[tf.Variable],
    v: Sequence[tf.Variable],
    weights: Sequence[tf.Variable],
    scalars: UpdateScalars,
    weight_decays: Sequence[float],
    epsilon: float,
    segments: Sequence[int] = (),
) -> Squares:
    """Updates the moments and returns the sums of squares for LAMB's trust ratios.

    Args:
        gradients: n tensors, each fp32, fp16 or bf16.
        m, v, weights: n fp32 variables of the gradients' shapes; `weights` do not change.
        scalars: see UpdateScalars.
        weight_decays: decoupled decay of each tensor, or each segment.
        epsilon: added to the denominator; positive.
        segments: empty; or, where n is 1, the sizes of the consecutive tensors in the flat variables.

    Returns:
        The squares of weights and updates; zeros if the update is skipped.

    Raises:
        tf.errors.InvalidArgumentError: shapes or dtypes do not match; epsilon is not positive.
    """
    return Squares(
        *library().tftrain_lamb_moments(
            gradients=list(gradients),
            **_state(m, v, weights),
            **_common(scalars, weight_decays, epsilon, segments),
        )
    )


def lamb_weights(
    m: Sequence[tf.Variable],
    v: Sequence[tf.Variable],
    weights: Sequence[tf.Variable],
    rates: tf.Tensor,
    scalars: UpdateScalars,
    weight_decays: Sequence[float],
    epsilon: float,
    segments: Sequence[int] = (),
    copies: Mapping[int, tf.Variable] | None = None,
) -> tf.Operation | None:
    """Updates the weights from the moments that `lamb_moments` updated.

    Args:
        rates: fp32 [n], the learning rate times the trust ratio of each tensor, or each segment.
        m, v, weights, scalars, weight_decays, epsilon, segments: as for `lamb_moments`.
        copies: by the number of a tensor, the fp16 or bf16 variable that receives its rounded weights; not with
            segments.

    Returns:
        The operation, in a graph.

    Raises:
        tf.errors.InvalidArgumentError: see `lamb_moments`.
    """
    return library().tftrain_lamb_weights(
        rates=rates,
        **_state(m, v, weights),
        **_common(scalars, weight_decays, epsilon, segments),
        **_copies(copies),
    )


def adamw(
    gradients: Sequence[tf.Tensor],
    m: Sequence[tf.Variable],
    v: Sequence[tf.Variable],
    weights: Sequence[tf.Variable],
    scalars: UpdateScalars,
    weight_decays: Sequence[float],
    epsilon: float,
    segments: Sequence[int] = (),
    copies: Mapping[int, tf.Variable] | None = None,
) -> tf.Operation | None:
    """Updates moments and weights in one pass.

    Args:
        gradients, m, v, weights, scalars, weight_decays, epsilon, segments: as for `lamb_moments`.
        copies: as for `lamb_weights`.

    Returns:
        The operation, in a graph.

    Raises:
        tf.errors.InvalidArgumentError: see `lamb_moments`.
    """
    return library().tftrain_adam_w(
        gradients=list(gradients),
        **_state(m, v, weights),
        **_common(scalars, weight_decays, epsilon, segments),
        **_copies(copies),
    )


def _state(m, v, weights):
    named = {"m": m, "v": v, "weights": weights}
    return {name: [variable.handle for variable in variables] for name, variables in named.items()}


def _copies(copies):
    numbers = sorted(copies or {})
    return {"copied": numbers, "copies": [copies[number].handle for number in numbers]}


def _common(scalars, weight_decays, epsilon, segments):
    return {
        "scalars": scalars.pack(),
        "weight_decays": tf.constant(list(weight_decays), tf.float32),
        "epsilon": epsilon,
        "segments": list(segments),
    }
