"""A transformer block: self-attention and the feed-forward layer, which every model family shares."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.attention import SelfAttention
from tftrain.model.attention_cores import AttentionMask
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.feed_forward import FeedForward
from tftrain.model.layers import LayerNorm
from tftrain.model.parameters import Parameters
from tftrain.ops.dropout import DropoutKey, bias_dropout_add, dropout_at, reference_bias_dropout_add

SITES_PER_BLOCK = 4  # dropout sites; the fourth is unused


class Block(tf_keras.layers.Layer):
    """Self-attention and the feed-forward layer, each with dropout, residual add and norm.

    Post-norm as in BERT, norm(x + sublayer(x)); or pre-norm (Xiong et al., arXiv 2002.04745), x + sublayer(norm(x)).
    """

    def __init__(
        self,
        parameters: Parameters,
        config: ModelConfig,
        first_site: int,
        checkpointing: Checkpointing = KEEP_ALL,
    ):
        """Makes the sub-layers `attention` and `feed_forward`, each with its `norm`.

        Args:
            parameters: makes the variables.
            config: sizes, the position of the norms and the implementations.
            first_site: first of the block's SITES_PER_BLOCK dropout sites.
            checkpointing: what backward recomputes.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.pre_norm = config.is_pre_norm
        self.dropout_rate = config.hidden_dropout_prob
        self.fused_add = config.dropout_add_impl == "fused"
        self.attention_site, self.feed_forward_site = first_site + 1, first_site + 2
        attention, feed_forward = parameters.scope("attention"), parameters.scope("feed_forward")
        self.attention = SelfAttention(attention, config, first_site, checkpointing)
        self.attention_norm = LayerNorm(attention.scope("norm"), config)
        self.feed_forward = FeedForward(feed_forward, config)
        self.feed_forward_norm = LayerNorm(feed_forward.scope("norm"), config)

    def call(self, x: tf.Tensor, mask: AttentionMask, dropout_key: DropoutKey | None) -> tf.Tensor:
        """Maps the residual stream [b, S, H] before the block to that behind it.

        Args:
            x: the residual stream.
            mask: which keys a query attends to.
            dropout_key: None in inference.

        Returns:
            [b, S, H].
        """
        with_bias = not self.fused_add  # the fused add takes the bias of the sub-layer's last projection
        normed = self.attention_norm(x) if self.pre_norm else x
        attended = self.attention(normed, mask, dropout_key, with_bias=with_bias)  # [b, S, H]
        x = self._add(x, attended, self.attention.output_projection.bias, dropout_key, self.attention_site)
        if not self.pre_norm:
            x = self.attention_norm(x)
        fed = self.feed_forward(self.feed_forward_norm(x) if self.pre_norm else x, with_bias=with_bias)  # [b, S, H]
        x = self._add(x, fed, self.feed_forward.down.bias, dropout_key, self.feed_forward_site)
        return x if self.pre_norm else self.feed_forward_norm(x)

    def _add(self, x, branch, bias, dropout_key, site):
        """Adds the output of a sub-layer, with dropout, to the residual stream."""
        dropout = dropout_at(dropout_key, self.dropout_rate, site)
        if self.fused_add:
            return bias_dropout_add(branch, bias, x, dropout)
        return reference_bias_dropout_add(branch, None, x, dropout)
