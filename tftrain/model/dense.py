"""The affine map that everything else is made of: y = x W + b."""

import tensorflow as tf
import tf_keras

from tftrain.model.parameters import Parameters


class Dense(tf_keras.layers.Layer):
    """An affine map of the last axis.

    Attributes:
        kernel: [inputs, outputs].
        bias: [outputs], or None.
    """

    def __init__(self, parameters: Parameters, inputs: int, outputs: int, use_bias: bool = True):
        """Makes the variables `kernel` and, if it is used, `bias`.

        Args:
            parameters: where the variables come from.
            inputs: width of the input.
            outputs: width of the output.
            use_bias: whether a bias is added.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.kernel = parameters.normal("kernel", [inputs, outputs])
        self.bias = parameters.zeros("bias", [outputs]) if use_bias else None

    def call(self, x: tf.Tensor, with_bias: bool = True) -> tf.Tensor:
        """Maps [b, ..., inputs] to [b, ..., outputs] in the layer's dtype; without the bias if an op behind adds it."""
        # One matrix product over all tokens, with the bias right behind it: that pair is what TensorFlow fuses.
        y = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), self.kernel)
        if with_bias and self.bias is not None:
            y = tf.nn.bias_add(y, self.bias)
        return tf.reshape(y, [-1, *x.shape[1:-1], y.shape[-1]])
