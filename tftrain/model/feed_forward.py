"""The feed-forward layer of a block, and the dense layer with GeLU that it shares with the masked-LM head."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.layers import Dense
from tftrain.model.parameters import Parameters
from tftrain.ops.gelu import bias_gelu, geglu, reference_bias_gelu, reference_geglu
from tftrain.parallel.tensor import copy_to_ranks


def dense_gelu(dense: Dense, x: tf.Tensor, config: ModelConfig) -> tf.Tensor:
    """Returns gelu(dense(x)).

    Args:
        dense: the layer, with a bias, which the fused op adds.
        x: [b, ..., inputs].
        config: the form of the GeLU and its implementation.

    Returns:
        [b, ..., outputs], in the layer's dtype.
    """
    if config.gelu_impl == "fused":
        return bias_gelu(dense(x, with_bias=False), dense.bias, config.gelu_form)
    return reference_bias_gelu(dense(x), None, config.gelu_form)


class FeedForward(tf_keras.layers.Layer):
    """gelu(x W_up) W_down; with GeGLU (Shazeer, arXiv 2002.05202) (gelu(x W_gate) * (x W_up)) W_down."""

    def __init__(self, parameters: Parameters, config: ModelConfig):
        """Makes the projections `up` and `down`, and `gate` for GeGLU, all with biases.

        Tensor parallel ranks divide the wide layer between `up` and `down`.

        Args:
            parameters: makes the variables.
            config: sizes, the activation and its implementation.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.config, self.group, self.place = config, parameters.tensor, parameters.place
        hidden, wide = config.hidden_size, config.feed_forward_size
        gated = config.activation == "geglu"
        self.gate = Dense(parameters.scope("gate"), hidden, wide, divided="outputs") if gated else None
        self.up = Dense(parameters.scope("up"), hidden, wide, divided="outputs")
        self.down = Dense(parameters.scope("down"), wide, hidden, divided="inputs", scale=config.residual_init_scale)

    def call(self, x: tf.Tensor, with_bias: bool = True) -> tf.Tensor:
        """Maps [b, S, H] to [b, S, H], each token by itself.

        Args:
            x: the input.
            with_bias: False if the op that follows adds the bias of `down`.
        """
        x = copy_to_ranks(self.group, x, self.place)
        if self.gate is None:
            wide = dense_gelu(self.up, x, self.config)  # [b, S, F of this rank]
        elif self.config.gelu_impl == "fused":
            gate, up = self.gate(x, with_bias=False), self.up(x, with_bias=False)
            wide = geglu(gate, up, self.gate.bias, self.up.bias, self.config.gelu_form)
        else:
            wide = reference_geglu(self.gate(x), self.up(x), None, None, self.config.gelu_form)
        return self.down(wide, with_bias=with_bias)
