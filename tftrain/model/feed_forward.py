"""The feed-forward layer of a block: wide, non-linear, and narrow again; with GeGLU, gated."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.activations import dense_gelu
from tftrain.model.dense import Dense
from tftrain.model.parameters import Parameters
from tftrain.ops.gelu import geglu
from tftrain.parallel.tensor import copy_to_ranks


class FeedForward(tf_keras.layers.Layer):
    """gelu(x W_up) W_down, or with GeGLU (Shazeer, arXiv 2002.05202) (gelu(x W_gate) * (x W_up)) W_down."""

    def __init__(self, parameters: Parameters, config: ModelConfig):
        """Makes the projections `up` and `down`, and `gate` for GeGLU, all with biases; ranks divide the wide layer.

        Args:
            parameters: where the variables come from.
            config: sizes, and the activation.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.config, self.group, self.place = config, parameters.tensor, parameters.place
        hidden, wide = config.hidden_size, config.feed_forward_size
        gated = config.activation == "geglu"
        self.gate = Dense(parameters.scope("gate"), hidden, wide, divided="outputs") if gated else None
        self.up = Dense(parameters.scope("up"), hidden, wide, divided="outputs")
        self.down = Dense(parameters.scope("down"), wide, hidden, divided="inputs")

    def call(self, x: tf.Tensor, with_bias: bool = True) -> tf.Tensor:
        """Maps [b, S, H] to [b, S, H], each token for itself; without the last bias if an op behind adds it."""
        x = copy_to_ranks(self.group, x, self.place)
        if self.gate is None:
            wide = dense_gelu(self.up, x, self.config)  # [b, S, F of this rank]
        elif self.config.gelu_impl == "fused":
            gate, up = self.gate(x, with_bias=False), self.up(x, with_bias=False)
            wide = geglu(gate, up, self.gate.bias, self.up.bias, self.config.gelu_form)
        else:
            wide = dense_gelu(self.gate, x, self.config) * self.up(x)
        return self.down(wide, with_bias=with_bias)
