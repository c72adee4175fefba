"""Layer normalization (Ba et al., arXiv 1607.06450) over the last axis.

The composition of plain operations moves its tensors through memory a dozen times. The op reads its inputs once and
writes its outputs once. Statistics are fp32 for every dtype.
"""

import tensorflow as tf

from tftrain.ops.dtypes import check_dtype, check_storage, wide_dtype
from tftrain.ops.library import library


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
    x, gamma = tf.convert_to_tensor(x), tf.convert_to_tensor(gamma)
    beta = tf.zeros_like(gamma) if beta is None else tf.convert_to_tensor(beta)
    check_storage("x", x)
    check_storage("gamma", gamma)
    check_dtype("beta", beta, gamma.dtype, "as gamma")
    return library().tftrain_layer_norm(x=x, gamma=gamma, beta=beta, epsilon=epsilon).y


@tf.RegisterGradient("TftrainLayerNorm")
def _layer_norm_gradient(op, dy, _dmean, _drstd):
    """Returns the gradients of x, gamma and beta."""
    x, gamma, _beta = op.inputs
    _y, mean, rstd = op.outputs
    return list(library().tftrain_layer_norm_grad(dy=dy, x=x, gamma=gamma, mean=mean, rstd=rstd))


def reference_layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor | None, epsilon: float) -> tf.Tensor:
    """Computes `layer_norm` in plain TensorFlow: its specification; float64 too, computed in float64."""
    wide = wide_dtype(x.dtype)
    centred = tf.cast(x, wide)
    centred -= tf.reduce_mean(centred, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    # Grappler regroups a product of products if nothing else needs the inner product, but not across a reshape. With
    # the reshape, the result is bit-equal whether or not a backward pass needs `normal`.
    normal = tf.reshape(centred * tf.math.rsqrt(variance + epsilon), [-1, x.shape[-1]])
    scaled = normal * tf.cast(gamma, wide)
    return tf.reshape(tf.cast(scaled if beta is None else scaled + tf.cast(beta, wide), x.dtype), tf.shape(x))
