"""Root mean square normalization (Zhang and Sennrich, arXiv 1910.07467) over the last axis.

The op reads its inputs once and writes its output once. Statistics are fp32 for every dtype.
"""

import tensorflow as tf

from tftrain.ops.dtypes import check_storage, wide_dtype
from tftrain.ops.library import library


def rms_norm(x: tf.Tensor, gamma: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Divides each row by its root mean square, then scales it.

    Args:
        x: [..., hidden], fp32, fp16 or bf16.
        gamma: [hidden], the scale; fp32, fp16 or bf16, independent of x's dtype.
        epsilon: added to the mean square; positive.

    Returns:
        A tensor like `x`.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or epsilon is not as above (ValueError while a graph is built).
    """
    x, gamma = tf.convert_to_tensor(x), tf.convert_to_tensor(gamma)
    check_storage("x", x)
    check_storage("gamma", gamma)
    return library().tftrain_rms_norm(x=x, gamma=gamma, epsilon=epsilon).y


@tf.RegisterGradient("TftrainRmsNorm")
def _rms_norm_gradient(op, dy, _drstd):
    """Returns the gradients of x and gamma."""
    x, gamma = op.inputs
    return list(library().tftrain_rms_norm_grad(dy=dy, x=x, gamma=gamma, rstd=op.outputs[1]))


def reference_rms_norm(x: tf.Tensor, gamma: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Computes `rms_norm` in plain TensorFlow: its specification; float64 too. The last axis of `x` is static."""
    wide = wide_dtype(x.dtype)
    values = tf.cast(x, wide)
    mean_square = tf.reduce_mean(tf.square(values), axis=-1, keepdims=True)
    # The reshape keeps Grappler from regrouping the products, see `reference_layer_norm`.
    normal = tf.reshape(values * tf.math.rsqrt(mean_square + epsilon), [-1, x.shape[-1]])
    return tf.reshape(tf.cast(normal * tf.cast(gamma, wide), x.dtype), tf.shape(x))
