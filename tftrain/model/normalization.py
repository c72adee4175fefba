"""Layer normalization (Ba et al., arXiv 1607.06450) over the last axis."""

import tensorflow as tf
import tf_keras

from tftrain.model.parameters import Parameters
from tftrain.model.precision import wide_dtype


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalizes each row to mean 0 and variance 1, then scales and shifts it.

    Mean, variance and everything up to the shift are computed in float32 (float64 for float64).

    Args:
        x: [..., width], any float dtype.
        gamma: [width], the scale.
        beta: [width], the shift.
        epsilon: added to the variance.

    Returns:
        A tensor like `x`.
    """
    wide = wide_dtype(x.dtype)
    centred = tf.cast(x, wide)
    centred -= tf.reduce_mean(centred, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    normal = centred * tf.math.rsqrt(variance + epsilon)
    return tf.cast(normal * tf.cast(gamma, wide) + tf.cast(beta, wide), x.dtype)


class LayerNorm(tf_keras.layers.Layer):
    """Layer normalization with its scale `gamma` and shift `beta`."""

    def __init__(self, parameters: Parameters, width: int, epsilon: float):
        """Makes the variables `gamma` and `beta`.

        Args:
            parameters: where the variables come from.
            width: size of the last axis.
            epsilon: added to the variance.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.epsilon = epsilon
        self.gamma = parameters.ones("gamma", [width])
        self.beta = parameters.zeros("beta", [width])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [..., width] to a tensor like it."""
        return layer_norm(x, self.gamma, self.beta, self.epsilon)
