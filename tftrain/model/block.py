"""One block of the encoder: self-attention and the feed-forward layer, each with dropout, residual add and norm."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.attention import AttentionMask, SelfAttention
from tftrain.model.dropout import DropoutKey, dropout
from tftrain.model.feed_forward import FeedForward
from tftrain.model.normalization import LayerNorm
from tftrain.model.parameters import Parameters

SITES_PER_BLOCK = 4  # dropout sites; the fourth is free


class Block(tf_keras.layers.Layer):
    """Post-norm as BERT, norm(x + sublayer(x)); or pre-norm (Xiong et al., arXiv 2002.04745), x + sublayer(norm(x))."""

    def __init__(self, parameters: Parameters, config: ModelConfig, first_site: int):
        """Makes the sub-layers `attention` and `feed_forward`, each with its `norm`.

        Args:
            parameters: where the variables come from.
            config: sizes and the place of the norms.
            first_site: first of the block's SITES_PER_BLOCK dropout sites.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.pre_norm = config.norm_position == "pre"
        self.dropout_rate = config.hidden_dropout_prob
        self.attention_site, self.feed_forward_site = first_site + 1, first_site + 2
        attention, feed_forward = parameters.scope("attention"), parameters.scope("feed_forward")
        self.attention = SelfAttention(attention, config, probabilities_site=first_site)
        self.attention_norm = LayerNorm(attention.scope("norm"), config.hidden_size, config.layer_norm_epsilon)
        self.feed_forward = FeedForward(feed_forward, config)
        self.feed_forward_norm = LayerNorm(feed_forward.scope("norm"), config.hidden_size, config.layer_norm_epsilon)

    def call(self, x: tf.Tensor, mask: AttentionMask, dropout_key: DropoutKey | None) -> tf.Tensor:
        """Maps [b, S, H] to [b, S, H].

        Args:
            x: the residual stream.
            mask: the batch's padding.
            dropout_key: None in inference.

        Returns:
            The residual stream behind the block.
        """
        if self.pre_norm:
            attended = self.attention(self.attention_norm(x), mask, dropout_key)
            x += dropout(attended, self.dropout_rate, dropout_key, self.attention_site)
            fed = self.feed_forward(self.feed_forward_norm(x))
            return x + dropout(fed, self.dropout_rate, dropout_key, self.feed_forward_site)
        attended = self.attention(x, mask, dropout_key)
        x = self.attention_norm(x + dropout(attended, self.dropout_rate, dropout_key, self.attention_site))
        fed = self.feed_forward(x)
        return self.feed_forward_norm(x + dropout(fed, self.dropout_rate, dropout_key, self.feed_forward_site))
