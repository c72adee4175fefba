"""Attention whose scores exist only tile by tile (Dao et al., "FlashAttention", arXiv 2205.14135).

Nothing of S x S elements is written, forward or backward. Kept for backward are the arguments, the context and fp32
[b, heads, S], the log-sum-exp of each query's scores. Backward computes the tiles again and draws their dropout masks
again. Tensors are [b, S, heads, head_size], as the projections leave them, so no transposition is needed.
"""

from collections.abc import Sequence

import tensorflow as tf

from tftrain.ops.dropout import Dropout, op_arguments, reference_dropout
from tftrain.ops.dtypes import check_dtype, check_shape, check_storage, wide_dtype
from tftrain.ops.grouped_heads import grouped_product
from tftrain.ops.library import library

_ATTRIBUTES = ("scale", "causal", "window", "drop_below", "seed", "site", "first_head", "total_heads")


def flash_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    key_mask: tf.Tensor,
    scale: float,
    dropout: Dropout | None = None,
    causal: bool = False,
    sequence_ids: tf.Tensor | None = None,
    slopes: Sequence[float] | None = None,
    window: int | None = None,
) -> tf.Tensor:
    """Returns dropout(softmax(scale * query key' + bias)) value for each head; softmax and sums are fp32.

    Args:
        query: [b, S, heads, head_size], fp32, fp16 or bf16; head_size a multiple of 8 up to 256; the number of heads
            must be static.
        key, value: like `query`, or with a divisor of its heads, see `grouped_heads`; nothing is copied for them.
        key_mask: int32 [b, S], positive for a token, else padding, to which no query attends.
        scale: factor of the scores.
        dropout: of the probabilities, with the heads of this rank; None in inference. The masks are those of
            `attention`.
        causal: whether a query attends only to its own position and to those before it.
        sequence_ids: int32 [b, S], above -2^31: a query attends only to tokens with its own id. None: to all.
        slopes: one for each head; slope * (key's position - query's position) is added to the scaled scores. None:
            nothing is.
        window: the largest distance of a token that a query attends to, at least 0; None: any. Time and work are linear
            in S then.

    Returns:
        [b, S, heads, head_size], of query's dtype; zeros, with zero gradients, for a query that attends to no token.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or rate is not as above (ValueError while a graph is built).
    """
    query, key, value, key_mask = (tf.convert_to_tensor(tensor) for tensor in (query, key, value, key_mask))
    check_storage("query", query)
    check_dtype("key", key, query.dtype, "as query")
    check_dtype("value", value, query.dtype, "as query")
    check_dtype("key_mask", key_mask, tf.int32)
    heads = query.shape[2] if query.shape.rank == 4 else None  # the op itself refuses any other rank
    lists = {"sequence_ids": [], "slopes": []}
    if sequence_ids is not None:
        lists["sequence_ids"].append(tf.convert_to_tensor(sequence_ids))
        check_dtype("sequence_ids", lists["sequence_ids"][0], tf.int32)
    if slopes is not None:
        lists["slopes"].append(tf.constant(slopes, tf.float32))
        check_shape("slopes", lists["slopes"][0], [heads], "one for each head")
    attributes, position = op_arguments(dropout)
    first, total = (dropout and dropout.part) or (0, heads or 0)
    context, _log_sum_exp = library().tftrain_flash_attention(
        query=query,
        key=key,
        value=value,
        key_mask=key_mask,
        position=position,
        scale=scale,
        causal=causal,
        window=-1 if window is None else window,
        first_head=first,
        total_heads=total,
        **attributes,
        **lists,
    )
    return context


@tf.RegisterGradient("TftrainFlashAttention")
def _flash_attention_gradient(op, dcontext, _dlog_sum_exp):
    """Returns the gradients of query, key and value."""
    query, key, value, key_mask, position, *lists = op.inputs
    context, log_sum_exp = op.outputs
    count = op.get_attr("sequence_id_lists")
    gradients = library().tftrain_flash_attention_grad(
        dcontext=dcontext,
        query=query,
        key=key,
        value=value,
        context=context,
        log_sum_exp=log_sum_exp,
        key_mask=key_mask,
        position=position,
        sequence_ids=lists[:count],
        slopes=lists[count:],
        **{name: op.get_attr(name) for name in _ATTRIBUTES},
    )
    return *gradients, None, None, *([None] * len(lists))


def reference_flash_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    key_mask: tf.Tensor,
    scale: float,
    dropout: Dropout | None = None,
    causal: bool = False,
    sequence_ids: tf.Tensor | None = None,
    slopes: Sequence[float] | None = None,
    window: int | None = None,
) -> tf.Tensor:
    """Computes `flash_attention` in plain TensorFlow: its specification. All dimensions but b must be static.

    Args:
        query, key, value: see `flash_attention`; float64 too.
        key_mask, scale, dropout, causal, sequence_ids, slopes, window: see `flash_attention`.

    Returns:
        [b, S, heads, head_size], of query's dtype.
    """
    query, key, value = (tf.transpose(tensor, [0, 2, 1, 3]) for tensor in (query, key, value))
    wide, length = wide_dtype(query.dtype), query.shape[2]
    logits = tf.cast(grouped_product(query, key, transpose_b=True), wide) * scale  # [b, heads, S, S]
    distance = tf.range(length)[tf.newaxis, :] - tf.range(length)[:, tf.newaxis]
    if slopes is not None:
        logits += tf.constant(slopes, wide)[:, tf.newaxis, tf.newaxis] * tf.cast(distance, wide)
    attended = (key_mask > 0)[:, tf.newaxis, tf.newaxis, :]
    if causal:
        attended &= distance <= 0
    if window is not None:
        attended &= tf.abs(distance) <= window
    if sequence_ids is not None:
        attended &= (sequence_ids[:, :, tf.newaxis] == sequence_ids[:, tf.newaxis, :])[:, tf.newaxis]
    hidden = tf.where(attended, tf.zeros([], wide), tf.constant(-float("inf"), wide))
    largest = tf.reduce_max(logits + hidden, axis=-1, keepdims=True)
    finite = tf.where(largest > -float("inf"), largest, tf.zeros_like(largest))
    exponentials = tf.exp(logits + hidden - tf.stop_gradient(finite))
    total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
    probabilities = tf.cast(tf.math.divide_no_nan(exponentials, total), value.dtype)
    context = grouped_product(reference_dropout(probabilities, dropout), value)
    return tf.transpose(context, [0, 2, 1, 3])
