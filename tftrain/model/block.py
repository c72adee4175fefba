"""One block of the encoder: self-attention and the feed-forward layer, each with dropout, residual add and norm."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.attention import AttentionMask, SelfAttention
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.dropout import DropoutKey, dropout, masks
from tftrain.model.feed_forward import FeedForward
from tftrain.model.normalization import LayerNorm
from tftrain.model.parameters import Parameters
from tftrain.ops.dropout import bias_dropout_add

SITES_PER_BLOCK = 4  # dropout sites; the fourth is free


class Block(tf_keras.layers.Layer):
    """Post-norm as BERT, norm(x + sublayer(x)); or pre-norm (Xiong et al., arXiv 2002.04745), x + sublayer(norm(x))."""

    def __init__(
        self,
        parameters: Parameters,
        config: ModelConfig,
        first_site: int,
        checkpointing: Checkpointing = KEEP_ALL,
    ):
        """Makes the sub-layers `attention` and `feed_forward`, each with its `norm`.

        Args:
            parameters: where the variables come from.
            config: sizes and the place of the norms.
            first_site: first of the block's SITES_PER_BLOCK dropout sites.
            checkpointing: what backward computes again.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.pre_norm = config.norm_position == "pre"
        self.dropout_rate = config.hidden_dropout_prob
        self.fused_add = config.dropout_add_impl == "fused"
        self.attention_site, self.feed_forward_site = first_site + 1, first_site + 2
        attention, feed_forward = parameters.scope("attention"), parameters.scope("feed_forward")
        self.attention = SelfAttention(attention, config, first_site, checkpointing)
        self.attention_norm = LayerNorm(attention.scope("norm"), config)
        self.feed_forward = FeedForward(feed_forward, config)
        self.feed_forward_norm = LayerNorm(feed_forward.scope("norm"), config)

    def call(self, x: tf.Tensor, mask: AttentionMask, dropout_key: DropoutKey | None) -> tf.Tensor:
        """Maps [b, S, H] to [b, S, H].

        Args:
            x: the residual stream.
            mask: the batch's padding.
            dropout_key: None in inference.

        Returns:
            The residual stream behind the block.
        """
        with_bias = not self.fused_add
        normed = self.attention_norm(x) if self.pre_norm else x
        attended = self.attention(normed, mask, dropout_key, with_bias=with_bias)
        x = self._add(x, attended, self.attention.output_projection.bias, dropout_key, self.attention_site)
        if not self.pre_norm:
            x = self.attention_norm(x)
        fed = self.feed_forward(self.feed_forward_norm(x) if self.pre_norm else x, with_bias=with_bias)
        x = self._add(x, fed, self.feed_forward.down.bias, dropout_key, self.feed_forward_site)
        return x if self.pre_norm else self.feed_forward_norm(x)

    def _add(self, x, branch, bias, dropout_key, site):
        """Adds a sub-layer's output, dropped out, to the stream; the fused op adds the sub-layer's bias as well."""
        if self.fused_add:
            return bias_dropout_add(branch, bias, x, masks(self.dropout_rate, dropout_key, site))
        return x + dropout(branch, self.dropout_rate, dropout_key, site)
