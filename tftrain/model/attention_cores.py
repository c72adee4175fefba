"""Attention cores: the computation between the query, key and value projections and the output projection.

A core computes softmax(query key' / sqrt(head_size)) value for each head. Several heads of queries may share a head of
keys and values, and no core copies them. A core takes an `AttentionMask`, not a tensor of heads x S x S elements, so a
core need not have any such tensor. To add a core, write a function of the type `AttentionCore` and choose it in
`core_of`.
"""

import math
from typing import Protocol

import tensorflow as tf

from tftrain.config.model import ModelConfig
from tftrain.model.positions import distance_bias
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.attention_softmax import attention, reference_attention_context
from tftrain.ops.cudnn_attention import cudnn_attention
from tftrain.ops.dropout import Dropout
from tftrain.ops.flash_attention import flash_attention
from tftrain.ops.grouped_heads import grouped_product
from tftrain.ops.tensors import dimension, wide_dtype


class AttentionCore(Protocol):
    """The type of a core."""

    def __call__(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: AttentionMask, dropout: Dropout | None
    ) -> tf.Tensor:
        """Returns the context of each query.

        Args:
            query: [b, S, heads, head_size], in the model's dtype; b may be unknown, and without dropout S too.
            key, value: like `query`, or with a divisor of its heads.
            mask: which keys a query attends to.
            dropout: of the probabilities, with the heads of this rank; None in inference.

        Returns:
            [b, S, heads, head_size], in the model's dtype. Zeros where a query has no key; in a row without any token,
            which nothing reads, any finite numbers.
        """


def plain_softmax(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: AttentionMask, dropout: Dropout | None
) -> tf.Tensor:
    """The core in plain TensorFlow."""
    query, key, value = _by_heads(query, key, value)
    if mask.cache:
        key, value = mask.cache.extended(key, value, mask.positions)
    # Scale the queries, because they have fewer elements than the scores. The reshapes stop Grappler from moving the
    # factor through the transpose that splits the heads. Grappler would do so only in graphs whose backward does not
    # need the scaled queries, so results would not be bit-equal.
    scaled = tf.reshape(tf.reshape(query, [-1]) * _scale(query), tf.shape(query))
    scores = grouped_product(tf.ensure_shape(scaled, query.shape), key, transpose_b=True)  # [b, heads, S, S]
    if mask.slopes:
        wide, positions = wide_dtype(scores.dtype), mask.positions
        positions = None if positions is None else positions[:, tf.newaxis]
        scores = tf.cast(scores, wide) + distance_bias(mask.slopes, dimension(scores, -1), wide, positions)
    context = reference_attention_context(scores, value, mask, 1.0, dropout)
    return tf.transpose(context, [0, 2, 1, 3])


def fused_softmax(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: AttentionMask, dropout: Dropout | None
) -> tf.Tensor:
    """The core whose scale, mask, softmax and dropout are one op."""
    query, key, value = _by_heads(query, key, value)
    scale, bias = _scale(query), None
    if mask.slopes:
        # The distance to a near key is small, so it is exact in 16 bits; a far key has next to no weight.
        bias = distance_bias(mask.slopes, key.shape[-2], query.dtype) / tf.cast(scale, query.dtype)
    return tf.transpose(attention(query, key, value, mask, scale, dropout, bias), [0, 2, 1, 3])


def flash(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: AttentionMask, dropout: Dropout | None
) -> tf.Tensor:
    """The core that is one op, without any tensor of S x S elements."""
    return flash_attention(query, key, value, mask, _scale(query), dropout)


def cudnn(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: AttentionMask, dropout: Dropout | None
) -> tf.Tensor:
    """The core that is a call of cuDNN, see `ops.cudnn_attention`. The keys of each row are its first tokens.

    Raises:
        ValueError: there is dropout, a bias, or more than one sequence in a row: the configuration forbids all three.
    """
    if dropout is not None or mask.slopes or mask.sequences is not None or mask.window is not None:
        raise ValueError("--attn_impl=cudnn takes no dropout, no slopes, no packed rows and no window")
    lengths = tf.reduce_sum(tf.cast(mask.keys > 0, tf.int32), axis=-1)
    return cudnn_attention(query, key, value, lengths, _scale(query), mask.causal)


def _by_heads(*tensors):
    """Maps each [b, S, heads, head_size] to [b, heads, S, head_size], for products of one head at a time."""
    return [tf.transpose(tensor, [0, 2, 1, 3]) for tensor in tensors]


def _scale(query: tf.Tensor) -> float:
    return 1 / math.sqrt(query.shape[-1])


CORES: dict[str, AttentionCore] = {"reference": plain_softmax, "fused": fused_softmax, "flash": flash, "cudnn": cudnn}


def core_of(config: ModelConfig) -> AttentionCore:
    """Returns the core that `attn_impl`, without auto, and, for softmax, `attn_softmax_impl` name."""
    return CORES[config.attn_softmax_impl if config.attn_impl == "softmax" else config.attn_impl]
