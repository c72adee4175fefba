"""A transformer block: self-attention and the feed-forward layer, which every model family shares."""

import tensorflow as tf
import tf_keras

from tftrain.architecture import parts
from tftrain.config.train import ModelConfig
from tftrain.model.attention import SelfAttention
from tftrain.model.attention_cores import AttentionMask
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.feed_forward import FeedForward
from tftrain.model.layers import LayerNorm
from tftrain.model.parameters import Parameters
from tftrain.ops.dropout import AxisRange, DropoutKey, bias_dropout_add, dropout_at, reference_bias_dropout_add

SITES_PER_BLOCK = 4  # dropout sites; the fourth is unused


class Block(tf_keras.layers.Layer):
    """Self-attention and the feed-forward layer, each with dropout, residual add and norm.

    Post-norm as in BERT, norm(x + sublayer(x)); or pre-norm (Xiong et al., arXiv 2002.04745), x + sublayer(norm(x)).
    """

    def __init__(
        self,
        parameters: Parameters,
        spec: parts.Block,
        config: ModelConfig,
        first_site: int,
        checkpointing: Checkpointing = KEEP_ALL,
    ):
        """Makes the sub-layers `attention` and `feed_forward`, each with its `norm`.

        Args:
            parameters: makes the variables.
            spec: the sub-layers and the position of the norms.
            config: dropout and the implementations.
            first_site: first of the block's SITES_PER_BLOCK dropout sites.
            checkpointing: what backward recomputes.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.pre_norm, self.ranks = spec.pre_norm, parameters.ranks
        self.dropout_rate = config.hidden_dropout_prob
        self.fused_add = config.dropout_add_impl == "fused"
        self.attention_site, self.feed_forward_site = first_site + 1, first_site + 2
        attention, feed_forward = parameters.scope("attention"), parameters.scope("feed_forward")
        self.attention = SelfAttention(attention, spec.attention, config, first_site, checkpointing)
        self.attention_norm = LayerNorm(attention.scope("norm"), spec.attention_norm, config)
        self.feed_forward = FeedForward(feed_forward, spec.feed_forward, config)
        self.feed_forward_norm = LayerNorm(feed_forward.scope("norm"), spec.feed_forward_norm, config)
        self._add_as_piece = parameters.ranks.piece(self._add_and_norm)

    def call(self, x: tf.Tensor, mask: AttentionMask, dropout_key: DropoutKey | None) -> tf.Tensor:
        """Maps the residual stream before the block to that behind it.

        Args:
            x: the residual stream, [b, S, H]; under sequence parallelism [b, S / ranks, H].
            mask: which keys a query attends to.
            dropout_key: None in inference.

        Returns:
            Like `x`.
        """
        with_bias = not self.fused_add  # the fused add takes the bias of the sub-layer's last projection
        normed = self.attention_norm(x) if self.pre_norm else x
        attended = self.attention(normed, mask, dropout_key, with_bias=with_bias)
        x, normed = self._add_as_piece(x, attended, dropout_key, is_attention=True)
        fed = self.feed_forward(normed, with_bias=with_bias)
        return self._add_as_piece(x, fed, dropout_key, is_attention=False)[0]

    def _add_and_norm(self, x, branch, dropout_key, is_attention):
        """Adds the output of a sub-layer; returns the residual stream, and the input of the next sub-layer."""
        if is_attention:
            bias, site, norm = self.attention.output_projection.bias, self.attention_site, self.attention_norm
        else:
            bias, site, norm = self.feed_forward.down.bias, self.feed_forward_site, self.feed_forward_norm
        x = self._add(x, branch, bias, dropout_key, site)
        if not self.pre_norm:
            x = norm(x)
            return x, x
        return x, self.feed_forward_norm(x) if is_attention else x

    def _add(self, x, branch, bias, dropout_key, site):
        """Adds the output of a sub-layer, with dropout, to the residual stream."""
        dropout = dropout_at(dropout_key, self.dropout_rate, site, self._part(x))
        if self.fused_add:
            return bias_dropout_add(branch, bias, x, dropout)
        return reference_bias_dropout_add(branch, None, x, dropout)

    def _part(self, x):
        """Returns which tokens of its samples this rank's residual stream has."""
        if not self.ranks.divide_sequence:
            return None
        length = x.shape[1] * self.ranks.group.size
        return AxisRange(self.ranks.own_tokens(length)[0], length)
