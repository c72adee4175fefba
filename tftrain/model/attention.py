"""Multi-head self-attention (Vaswani et al., arXiv 1706.03762) over the tokens of a padded batch."""

import math
from typing import NamedTuple

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.dense import Dense
from tftrain.model.dropout import DropoutKey, dropout, masks
from tftrain.model.parameters import Parameters
from tftrain.model.precision import wide_dtype
from tftrain.ops.attention_softmax import HeadRange, attention_context
from tftrain.parallel.tensor import copy_to_ranks

MASKED = -1e9  # added to a score, leaves nothing of it in float32, and its exponential is 0


class AttentionMask(NamedTuple):
    """The padding of a batch, in the two forms that attention needs; made once, used by every block.

    Attributes:
        bias: [b, 1, 1, S], float32 (float64 for float64): 0 for a token, -1e9 for padding; added to the scores.
        any_token: [b, 1, 1], the model's dtype: 1, or 0 for a sample without a single token.
        keys: int32 [b, S], 0 for padding.
    """

    bias: tf.Tensor
    any_token: tf.Tensor
    keys: tf.Tensor


def attention_mask(input_mask: tf.Tensor, dtype: str) -> AttentionMask:
    """Makes the mask of a batch.

    Args:
        input_mask: int [b, S], 0 for padding.
        dtype: the model's dtype.

    Returns:
        An AttentionMask.
    """
    token = tf.cast(input_mask > 0, wide_dtype(dtype))  # [b, S]
    bias = (1 - token) * MASKED
    any_token = tf.reduce_max(token, axis=1)
    keys = tf.cast(input_mask, tf.int32)
    return AttentionMask(bias[:, None, None, :], tf.cast(any_token, dtype)[:, None, None], keys)


def attention_probabilities(scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Softmax over the keys, in float32 (float64 for float64).

    Args:
        scores: [b, heads, S, S], scaled products of queries and keys.
        bias: [b, 1, 1, S] in the softmax's dtype, see `AttentionMask`.

    Returns:
        A tensor like `scores`; masked keys get 0, unless all keys are masked: then all get the same.
    """
    return tf.cast(tf.nn.softmax(tf.cast(scores, bias.dtype) + bias), scores.dtype)


class SelfAttention(tf_keras.layers.Layer):
    """Queries, keys and values from one input, softmax attention within each head, and the output projection.

    Where ranks divide the model, each has whole heads: their queries, keys, values, and rows of the output projection.
    """

    def __init__(
        self,
        parameters: Parameters,
        config: ModelConfig,
        probabilities_site: int,
        checkpointing: Checkpointing = KEEP_ALL,
    ):
        """Makes the projections `query`, `key`, `value` and `output`, each with a [H, H] kernel over all ranks.

        Args:
            parameters: where the variables come from.
            config: sizes, the attention dropout, and whether keys have a bias.
            probabilities_site: dropout site of the attention probabilities.
            checkpointing: whether backward computes scores, probabilities and context again.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.core = self._fused_context if config.attn_softmax_impl == "fused" else self._context
        self.checkpointing = checkpointing
        self.dropout_rate, self.dropout_site = config.attention_probs_dropout_prob, probabilities_site
        self.group, self.place = parameters.tensor, parameters.place
        hidden, self.head_size = config.hidden_size, config.head_size
        by_heads = {"divided": "outputs", "unit": config.head_size}
        self.query = Dense(parameters.scope("query"), hidden, hidden, **by_heads)
        self.key = Dense(parameters.scope("key"), hidden, hidden, config.use_bias_in_keys, **by_heads)
        self.value = Dense(parameters.scope("value"), hidden, hidden, **by_heads)
        self.output_projection = Dense(
            parameters.scope("output"), hidden, hidden, divided="inputs", unit=config.head_size
        )
        self.heads, self.head_range = self.query.kernel.shape[1] // config.head_size, None
        if self.group.size > 1:
            first = parameters.scope("query").offset("kernel") // config.head_size
            self.head_range = HeadRange(first, config.num_attention_heads)

    def call(
        self, x: tf.Tensor, mask: AttentionMask, dropout_key: DropoutKey | None, with_bias: bool = True
    ) -> tf.Tensor:
        """Lets every token look at every token of its sample.

        Args:
            x: [b, S, H].
            mask: the batch's padding.
            dropout_key: None in inference.
            with_bias: False if an op behind the output projection adds its bias.

        Returns:
            [b, S, H]; for a sample without tokens, the output projection of zeros.
        """
        x = copy_to_ranks(self.group, x, self.place)
        query, key, value = self.query(x), self._split_heads(self.key(x)), self._split_heads(self.value(x))
        context = self.checkpointing.attention_core(self.core, query, key, value, mask, dropout_key)
        width = self.heads * self.head_size
        context = tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, x.shape[1], width])  # [b, S, H of this rank]
        return self.output_projection(context, with_bias=with_bias)

    def _context(self, query, key, value, mask, dropout_key):
        """Returns softmax(query key' / sqrt(head_size)) value, [b, heads, S, head_size], from query [b, S, width]."""
        query = self._split_heads(query * (1 / math.sqrt(self.head_size)))
        scores = tf.matmul(query, key, transpose_b=True)  # [b, heads, S, S]
        probabilities = attention_probabilities(scores, mask.bias)
        probabilities = dropout(probabilities, self.dropout_rate, dropout_key, self.dropout_site, self.head_range)
        return tf.matmul(probabilities, value) * mask.any_token[:, None]

    def _fused_context(self, query, key, value, mask, dropout_key):
        """Does what `_context` does, by the fused op."""
        scores = tf.matmul(self._split_heads(query), key, transpose_b=True)
        drawn = masks(self.dropout_rate, dropout_key, self.dropout_site)
        return attention_context(scores, mask.keys, value, 1 / math.sqrt(self.head_size), drawn, self.head_range)

    def _split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """[b, S, width] -> [b, heads, S, head_size], of this rank's heads."""
        return tf.transpose(tf.reshape(x, [-1, x.shape[1], self.heads, self.head_size]), [0, 2, 1, 3])
