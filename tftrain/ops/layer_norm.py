"""Layer normalization (Ba et al., arXiv 1607.06450) over the last axis, or by root mean squares (arXiv 1910.07467).

The composition of plain operations moves its tensors through memory a dozen times. The ops read their inputs once and
write their outputs once. Statistics are fp32 for every dtype.
"""

import tensorflow as tf

from tftrain.ops.library import library
from tftrain.ops.tensors import checked, wide_dtype


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor | None, epsilon: float) -> tf.Tensor:
    """Normalizes each row to mean 0 and variance 1, then scales and shifts it.

    Args:
        x: [..., hidden], fp32, fp16 or bf16.
        gamma: [hidden], the scale; fp32, fp16 or bf16, independent of x's dtype.
        beta: [hidden], the shift, of gamma's dtype; None: no shift.
        epsilon: added to the variance; positive.

    Returns:
        A tensor like `x`.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or epsilon is not as above (ValueError while a graph is built).
    """
    x, gamma = checked("x", x), checked("gamma", gamma)
    beta = tf.zeros_like(gamma) if beta is None else checked("beta", beta, gamma.dtype, "as gamma")
    return library().tftrain_layer_norm(x=x, gamma=gamma, beta=beta, epsilon=epsilon).y


def rms_norm(x: tf.Tensor, gamma: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Divides each row by its root mean square, then scales it.

    `epsilon` is added to the mean square. For the other arguments, the result and the errors, see `layer_norm`.
    """
    x, gamma = checked("x", x), checked("gamma", gamma)
    return library().tftrain_rms_norm(x=x, gamma=gamma, epsilon=epsilon).y


@tf.RegisterGradient("TftrainLayerNorm")
def _layer_norm_gradient(op: tf.Operation, dy: tf.Tensor, _dmean: tf.Tensor, _drstd: tf.Tensor) -> list[tf.Tensor]:
    x, gamma, _beta = op.inputs
    _y, mean, rstd = op.outputs
    return list(library().tftrain_layer_norm_grad(dy=dy, x=x, gamma=gamma, mean=mean, rstd=rstd))


@tf.RegisterGradient("TftrainRmsNorm")
def _rms_norm_gradient(op: tf.Operation, dy: tf.Tensor, _drstd: tf.Tensor) -> list[tf.Tensor]:
    x, gamma = op.inputs
    return list(library().tftrain_rms_norm_grad(dy=dy, x=x, gamma=gamma, rstd=op.outputs[1]))


def reference_layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor | None, epsilon: float) -> tf.Tensor:
    """Computes `layer_norm` in plain TensorFlow: its specification; float64 too, computed in float64."""
    centred = tf.cast(x, wide_dtype(x.dtype))
    centred -= tf.reduce_mean(centred, axis=-1, keepdims=True)
    return _normalized(centred, gamma, beta, epsilon, x)


def reference_rms_norm(x: tf.Tensor, gamma: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Computes `rms_norm` in plain TensorFlow: its specification; float64 too. The last axis of `x` is static."""
    return _normalized(tf.cast(x, wide_dtype(x.dtype)), gamma, None, epsilon, x)


def _normalized(wide: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor | None, epsilon: float, x: tf.Tensor) -> tf.Tensor:
    """Divides each row by its root mean square, then scales and shifts it; returns a tensor like `x`."""
    mean_square = tf.reduce_mean(tf.square(wide), axis=-1, keepdims=True)
    # Grappler regroups a product of products if nothing else needs the inner product, but not across a reshape. With
    # the reshape, the result is bit-equal whether or not a backward pass needs `normal`.
    normal = tf.reshape(wide * tf.math.rsqrt(mean_square + epsilon), [-1, x.shape[-1]])
    scaled = normal * tf.cast(gamma, wide.dtype)
    shifted = scaled if beta is None else scaled + tf.cast(beta, wide.dtype)
    return tf.reshape(tf.cast(shifted, x.dtype), tf.shape(x))
