"""The affine map that everything else is made of: y = x W + b; ranks may divide W by its outputs or by its inputs."""

import tensorflow as tf
import tf_keras

from tftrain.model.parameters import Parameters
from tftrain.parallel.tensor import sum_over_ranks


class Dense(tf_keras.layers.Layer):
    """An affine map of the last axis.

    Attributes:
        kernel: [inputs, outputs] of this rank.
        bias: [outputs] of this rank, or None.
    """

    def __init__(
        self,
        parameters: Parameters,
        inputs: int,
        outputs: int,
        use_bias: bool = True,
        divided: str | None = None,
        unit: int = 1,
    ):
        """Makes the variables `kernel` and, if it is used, `bias`.

        Args:
            parameters: where the variables come from.
            inputs: width of the input, over all ranks.
            outputs: width of the output, over all ranks.
            use_bias: whether a bias is added.
            divided: what the ranks of the tensor parallel group divide between them. "outputs": each computes some,
                from an input that went through `copy_to_ranks`. "inputs": each has some and computes its part of a
                sum; it is added up here, and then the bias is added once.
            unit: inputs or outputs that stay together.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        by_outputs = divided == "outputs"
        self.group, self.place, self.sums = parameters.tensor, parameters.place, divided == "inputs"
        axis = {"outputs": 1, "inputs": 0, None: None}[divided]
        self.kernel = parameters.normal("kernel", [inputs, outputs], axis, unit)
        self.bias = parameters.zeros("bias", [outputs], 0 if by_outputs else None, unit) if use_bias else None

    def call(self, x: tf.Tensor, with_bias: bool = True) -> tf.Tensor:
        """Maps [b, ..., inputs] to [b, ..., outputs] in the layer's dtype; without the bias if an op behind adds it."""
        # One matrix product over all tokens, with the bias right behind it: that pair is what TensorFlow fuses.
        y = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), self.kernel)
        if self.sums:
            y = sum_over_ranks(self.group, y, self.place)
        if with_bias and self.bias is not None:
            y = tf.nn.bias_add(y, self.bias)
        return tf.reshape(y, [-1, *x.shape[1:-1], y.shape[-1]])
