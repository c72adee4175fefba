"""The feed-forward layer of a block: wide, non-linear, and narrow again; with GeGLU, gated."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.activations import gelu
from tftrain.model.dense import Dense
from tftrain.model.parameters import Parameters


class FeedForward(tf_keras.layers.Layer):
    """gelu(x W_up) W_down, or with GeGLU (Shazeer, arXiv 2002.05202) (gelu(x W_gate) * (x W_up)) W_down."""

    def __init__(self, parameters: Parameters, config: ModelConfig):
        """Makes the projections `up` and `down`, and `gate` for GeGLU, all with biases.

        Args:
            parameters: where the variables come from.
            config: sizes, and the activation.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.gelu_form = config.gelu_form
        hidden, wide = config.hidden_size, config.feed_forward_size
        self.gate = Dense(parameters.scope("gate"), hidden, wide) if config.activation == "geglu" else None
        self.up = Dense(parameters.scope("up"), hidden, wide)
        self.down = Dense(parameters.scope("down"), wide, hidden)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [b, S, H] to [b, S, H], each token for itself."""
        up = self.up(x)  # [b, S, F]
        wide = gelu(up, self.gelu_form) if self.gate is None else gelu(self.gate(x), self.gelu_form) * up
        return self.down(wide)
