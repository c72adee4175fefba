"""The feed-forward layer of a block, and the dense layer with GeLU that it shares with the masked-LM head."""

import tensorflow as tf
import tf_keras

from tftrain.architecture import parts
from tftrain.config.train import ModelConfig
from tftrain.model.layers import Dense, Entered, enter_dense, leave_dense
from tftrain.model.parameters import Parameters
from tftrain.ops.gelu import bias_gelu, geglu, reference_bias_gelu, reference_geglu


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

    def __init__(self, parameters: Parameters, spec: parts.FeedForward, config: ModelConfig):
        """Makes the projections `up` and `down`, and `gate` for GeGLU.

        Tensor parallel ranks divide the wide layer between `up` and `down`.

        Args:
            parameters: makes the variables.
            spec: the projections.
            config: the form of the GeLU, its implementation and the initial weights.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.config, self.ranks, self.place = config, parameters.ranks, parameters.place
        self.gate = Dense(parameters.scope("gate"), spec.gate) if spec.gate else None
        self.up = Dense(parameters.scope("up"), spec.up)
        self.down = Dense(parameters.scope("down"), spec.down, config.residual_init_scale)
        self._feed_as_piece = self.ranks.piece(self._feed)

    def call(self, x: tf.Tensor, with_bias: bool = True) -> tf.Tensor:
        """Maps [b, S, H], or this rank's tokens of it, to the same shape, each token by itself.

        Args:
            x: the input.
            with_bias: False if the op that follows adds the bias of `down`.
        """
        x = enter_dense(self.ranks, x, self._first, self.place)
        fed = self._feed_as_piece(x, with_bias and self.ranks.group.size == 1)
        return leave_dense(self.ranks, fed, self.down, with_bias)

    @property
    def _first(self) -> list[Dense]:
        return [self.up] if self.gate is None else [self.gate, self.up]

    def _feed(self, x: Entered, with_bias: bool) -> tf.Tensor:
        """Returns this rank's part of the output, [b, S, H]."""
        is_fused = self.config.gelu_impl == "fused"
        wide = x.outputs(self._first, with_bias=not is_fused)  # each [b, S, F of this rank]
        biases = [dense.bias if is_fused else None for dense in self._first]
        if self.gate is None:
            gelu = bias_gelu if is_fused else reference_bias_gelu
        else:
            gelu = geglu if is_fused else reference_geglu
        return self.down(gelu(*wide, *biases, self.config.gelu_form), with_bias=with_bias)
