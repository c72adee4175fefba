"""The two basic layers: the affine map and layer normalization."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.parameters import Parameters
from tftrain.model.weight_gradients import product
from tftrain.ops.dtypes import wide_dtype
from tftrain.ops.layer_norm import layer_norm, reference_layer_norm
from tftrain.parallel.tensor import sum_over_ranks


class Dense(tf_keras.layers.Layer):
    """An affine map of the last axis, y = x W + b; tensor parallel ranks may divide W by its outputs or its inputs.

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
        scale: float = 1.0,
    ):
        """Makes the variables `kernel` and, if it is used, `bias`.

        Args:
            parameters: makes the variables.
            inputs: width of the input, over all ranks.
            outputs: width of the output, over all ranks.
            use_bias: whether a bias is added.
            divided: the axis that tensor parallel ranks divide. "outputs": each rank computes some outputs, from an
                input that went through `copy_to_ranks`. "inputs": each rank has some inputs and computes its part of a
                sum; the layer adds the parts up, and then adds the bias once.
            unit: number of neighbouring inputs or outputs that stay on one rank.
            scale: factor of the kernel's initial standard deviation.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        by_outputs = divided == "outputs"
        self.group, self.place, self.sums = parameters.tensor, parameters.place, divided == "inputs"
        axis = {"outputs": 1, "inputs": 0, None: None}[divided]
        self.kernel = parameters.normal("kernel", [inputs, outputs], axis, unit, scale)
        self.bias = parameters.zeros("bias", [outputs], 0 if by_outputs else None, unit) if use_bias else None

    def call(self, x: tf.Tensor, with_bias: bool = True) -> tf.Tensor:
        """Maps [b, ..., inputs] to [b, ..., outputs] in the layer's dtype.

        Args:
            x: the input.
            with_bias: False if the op that follows adds the bias.
        """
        # One matrix product over all tokens, followed at once by the bias: TensorFlow fuses that pair.
        y = product(tf.reshape(x, [-1, x.shape[-1]]), self.kernel)
        if self.sums:
            y = sum_over_ranks(self.group, y, self.place)
        if with_bias and self.bias is not None:
            y = tf.nn.bias_add(y, self.bias)
        return tf.reshape(y, [-1, *x.shape[1:-1], y.shape[-1]])


class LayerNorm(tf_keras.layers.Layer):
    """Layer normalization (Ba et al., arXiv 1607.06450) with its scale `gamma` and shift `beta`."""

    def __init__(self, parameters: Parameters, config: ModelConfig):
        """Makes the variables `gamma` and `beta`.

        Args:
            parameters: makes the variables.
            config: the width H, the epsilon, the variables' dtype and the implementation.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        if config.ln_dtype == "fp32":
            parameters = parameters.in_dtype(wide_dtype(parameters.dtype).name)
        self.epsilon, width = config.layer_norm_epsilon, config.hidden_size
        self.normalize = {"fused": layer_norm, "reference": reference_layer_norm}[config.ln_impl]
        self.gamma = parameters.ones("gamma", [width])
        self.beta = parameters.zeros("beta", [width])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes the last axis of [..., H]."""
        return self.normalize(x, self.gamma, self.beta, self.epsilon)
