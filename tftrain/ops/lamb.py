"""LAMB (arXiv 1904.00962) and AdamW (arXiv 1711.05101) over all variables at once, in place on the device.

LAMB takes two passes: `lamb_moments` updates the moments and returns the sums of squares for the trust ratios, and
`lamb_weights` updates the weights. Between them a caller with shards sums the squares over ranks, in one small vector.
AdamW needs one pass. A gradient factor of 0 skips the update.

Weights and moments are fp32. Gradients are read in the dtype that they have. The pass over the weights also writes
them, rounded, to their 16-bit copies, so that no cast reads all of them once more.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

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
    """Sums of squares of each tensor, or each slice; fp32 [n]."""

    weights: tf.Tensor
    updates: tf.Tensor


class FusedUpdate(NamedTuple):
    """An update of n tensors by one op."""

    gradients: Sequence[tf.Tensor]  # n tensors, each fp32, fp16 or bf16
    m: Sequence[tf.Variable]  # n fp32 variables of the gradients' shapes, and so are `v` and `weights`
    v: Sequence[tf.Variable]
    weights: Sequence[tf.Variable]
    scalars: UpdateScalars
    weight_decays: Sequence[float]  # decoupled decay of each tensor, or each slice
    epsilon: float  # added to the denominator; positive
    segments: Sequence[int] = ()  # where n is 1, the sizes of the slices of a flat bucket, one for each tensor in it
    # By the number of a tensor, the fp16 or bf16 variable that receives its rounded weights; not with slices.
    copies: Mapping[int, tf.Variable] = MappingProxyType({})

    def stores(self) -> dict[str, Any]:
        """Returns the inputs and attributes that all ops take."""
        return {
            **{name: [each.handle for each in getattr(self, name)] for name in ("m", "v", "weights")},
            "scalars": self.scalars.pack(),
            "weight_decays": tf.constant(list(self.weight_decays), tf.float32),
            "epsilon": self.epsilon,
            "segments": list(self.segments),
        }

    def copied(self) -> dict[str, Any]:
        """Returns those of ops that write the copies of weights."""
        numbers = sorted(self.copies)
        return {"copied": numbers, "copies": [self.copies[number].handle for number in numbers]}


def squared_norms(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of squares of each of n tensors, fp32, fp16 or bf16, bit-equal in every run: fp32 [n]."""
    return library().tftrain_squared_norms(tensors=list(tensors))


def lamb_moments(update: FusedUpdate) -> Squares:
    """Updates the moments and returns the sums of squares for LAMB's trust ratios; zeros if the update is skipped.

    Raises:
        tf.errors.InvalidArgumentError: shapes or dtypes do not match; epsilon is not positive.
    """
    return Squares(*library().tftrain_lamb_moments(gradients=list(update.gradients), **update.stores()))


def lamb_weights(update: FusedUpdate, rates: tf.Tensor) -> tf.Operation | None:
    """Updates the weights from the moments that `lamb_moments` updated, without the gradients.

    `rates`, fp32 [n], are the learning rate times the trust ratio of each tensor, or each slice. Returns the
    operation, in a graph. For the errors, see `lamb_moments`.
    """
    return library().tftrain_lamb_weights(rates=rates, **update.stores(), **update.copied())


def adamw(update: FusedUpdate) -> tf.Operation | None:
    """Updates moments and weights in one pass; returns the operation, in a graph. For errors, see `lamb_moments`."""
    return library().tftrain_adam_w(gradients=list(update.gradients), **update.stores(), **update.copied())
