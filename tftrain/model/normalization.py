"""Layer normalization (Ba et al., arXiv 1607.06450) over the last axis."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.parameters import Parameters
from tftrain.model.precision import wide_dtype
from tftrain.ops.layer_norm import layer_norm, reference_layer_norm


class LayerNorm(tf_keras.layers.Layer):
    """Layer normalization with its scale `gamma` and shift `beta`."""

    def __init__(self, parameters: Parameters, config: ModelConfig):
        """Makes the variables `gamma` and `beta`.

        Args:
            parameters: where the variables come from.
            config: the width H, what is added to the variance, the variables' dtype and the implementation.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        if config.ln_dtype == "fp32":
            parameters = parameters.in_dtype(wide_dtype(parameters.dtype).name)
        self.epsilon, width = config.layer_norm_epsilon, config.hidden_size
        self.normalize = layer_norm if config.ln_impl == "fused" else reference_layer_norm
        self.gamma = parameters.ones("gamma", [width])
        self.beta = parameters.zeros("beta", [width])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [..., H] to a tensor like it."""
        return self.normalize(x, self.gamma, self.beta, self.epsilon)
