"""Root mean square normalization (Zhang and Sennrich, arXiv 1910.07467) over the last axis, in plain TensorFlow.

There is no fused op yet. Statistics are fp32 for every dtype.
"""

import tensorflow as tf

from tftrain.ops.dtypes import wide_dtype


def reference_rms_norm(x: tf.Tensor, gamma: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Divides each row by its root mean square, then scales it.

    Args:
        x: [..., hidden], any float dtype; the last axis static.
        gamma: [hidden], the scale; any float dtype.
        epsilon: added to the mean square; positive.

    Returns:
        A tensor like `x`, computed in fp32 (float64 for float64) and rounded once.
    """
    wide = wide_dtype(x.dtype)
    values = tf.cast(x, wide)
    mean_square = tf.reduce_mean(tf.square(values), axis=-1, keepdims=True)
    # The reshape keeps Grappler from regrouping the products, see `reference_layer_norm`.
    normal = tf.reshape(values * tf.math.rsqrt(mean_square + epsilon), [-1, x.shape[-1]])
    return tf.reshape(tf.cast(normal * tf.cast(gamma, wide), x.dtype), tf.shape(x))
