"""Layer normalization (Ba et al., arXiv 1607.06450) over the last axis, with an optional residual added in front.

One op makes two passes over memory out of the dozen that the composition takes: it reads its inputs once and writes its
outputs once. Statistics are fp32 for every dtype.
"""

from typing import NamedTuple

import tensorflow as tf

from tftrain.ops.dtypes import check_dtype, check_storage, wide_dtype
from tftrain.ops.library import library


class AddNorm(NamedTuple):
    """What `add_layer_norm` returns.

    Attributes:
        y: [..., hidden], the normalized sum.
        sum: [..., hidden], x + residual in their dtype: the residual stream of a pre-norm block.
    """

    y: tf.Tensor
    sum: tf.Tensor


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalizes each row to mean 0 and variance 1, then scales and shifts it.

    Args:
        x: [..., hidden], fp32, fp16 or bf16.
        gamma: [hidden], the scale; fp32, fp16 or bf16, whatever x is.
        beta: [hidden], the shift, of gamma's dtype.
        epsilon: added to the variance; positive.

    Returns:
        A tensor like `x`.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or epsilon is not as above (ValueError while a graph is built).
    """
    return _op(x, [], gamma, beta, epsilon, sum_gradient=False).y


def add_layer_norm(x: tf.Tensor, residual: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalizes x + residual where the sum itself is not needed: a post-norm block.

    Args:
        x: [..., hidden], see `layer_norm`.
        residual: like `x`.
        gamma, beta, epsilon: see `layer_norm`.

    Returns:
        A tensor like `x`.

    Raises:
        tf.errors.InvalidArgumentError: see `layer_norm`.
    """
    return _op(x, [residual], gamma, beta, epsilon, sum_gradient=False).y


def add_layer_norm_with_sum(
    x: tf.Tensor, residual: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> AddNorm:
    """Normalizes x + residual and returns the sum as well: a pre-norm block.

    Args:
        x, residual, gamma, beta, epsilon: see `add_layer_norm`.

    Returns:
        An AddNorm.

    Raises:
        tf.errors.InvalidArgumentError: see `layer_norm`.
    """
    out = _op(x, [residual], gamma, beta, epsilon, sum_gradient=True)
    return AddNorm(out.y, out.sum[0])


def _op(x, residual, gamma, beta, epsilon, sum_gradient):
    x, gamma, beta = (tf.convert_to_tensor(tensor) for tensor in (x, gamma, beta))
    residual = [tf.convert_to_tensor(tensor) for tensor in residual]
    check_storage("x", x)
    check_storage("gamma", gamma)
    check_dtype("beta", beta, gamma.dtype, "as gamma")
    for tensor in residual:
        check_dtype("residual", tensor, x.dtype, "as x")
    return library().tftrain_layer_norm(
        x=x, gamma=gamma, beta=beta, residual=residual, epsilon=epsilon, sum_gradient=sum_gradient
    )


@tf.RegisterGradient("TftrainLayerNorm")
def _layer_norm_gradient(op, dy, _dmean, _drstd, dsum=None):
    """Returns the gradients of x, gamma, beta and, if there is one, the residual, which has x's."""
    has_residual = op.get_attr("residuals") > 0
    x = op.outputs[3] if has_residual else op.inputs[0]
    used = [dsum] if has_residual and op.get_attr("sum_gradient") else []
    _y, mean, rstd = op.outputs[:3]
    dx, dgamma, dbeta = library().tftrain_layer_norm_grad(
        dy=dy, x=x, gamma=op.inputs[1], mean=mean, rstd=rstd, dsum=used
    )
    return [dx, dgamma, dbeta, *([dx] if has_residual else [])]


def reference_layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Does what `layer_norm` does in plain TensorFlow: its specification.

    Args:
        x, gamma, beta, epsilon: see `layer_norm`; float64 too, computed in float64.

    Returns:
        A tensor like `x`.
    """
    wide = wide_dtype(x.dtype)
    centred = tf.cast(x, wide)
    centred -= tf.reduce_mean(centred, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    # Grappler regroups products of products, where nothing else needs the inner one; it does not look past a reshape.
    # So the result is bit-equal with and without a backward pass that keeps `normal`.
    normal = tf.reshape(centred * tf.math.rsqrt(variance + epsilon), [-1, x.shape[-1]])
    return tf.reshape(tf.cast(normal * tf.cast(gamma, wide) + tf.cast(beta, wide), x.dtype), tf.shape(x))
