"""Attention whose scores exist only tile by tile (Dao et al., "FlashAttention", arXiv 2205.14135).

Nothing of S x S elements is written, forward or backward. Kept for backward are the arguments, the context and fp32
[b, heads, S], the log-sum-exp of each query's scores. Backward computes the tiles again and draws their dropout masks
again. Tensors are [b, S, heads, head_size], as the projections leave them, so no transposition is needed.
"""

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.attention_softmax import reference_attention_context
from tftrain.ops.dropout import Dropout, attention_arguments
from tftrain.ops.grouped_heads import grouped_product
from tftrain.ops.library import library
from tftrain.ops.tensors import check_shape, checked, wide_dtype

_ATTRIBUTES = ("scale", "causal", "window", "drop_below", "seed", "site", "first_head", "total_heads")


def flash_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: AttentionMask, scale: float, dropout: Dropout | None
) -> tf.Tensor:
    """Returns dropout(softmax(scale * query key' + bias)) value for each head; softmax and sums are fp32.

    Args:
        query: [b, S, heads, head_size], fp32, fp16 or bf16; head_size a multiple of 8 up to 256; the number of heads
            must be static.
        key, value: like `query`, or with a divisor of its heads, see `grouped_heads`; nothing is copied for them.
        mask: which keys a query attends to. With a window, time and work are linear in S.
        scale: factor of the scores.
        dropout: of the probabilities, with the heads of this rank; None in inference. The masks are those of
            `attention`.

    Returns:
        [b, S, heads, head_size], of query's dtype; zeros, with zero gradients, for a query that attends to no token.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or rate is not as above (ValueError while a graph is built).
    """
    query = checked("query", query)
    key, value = (checked(name, given, query.dtype, "as query") for name, given in (("key", key), ("value", value)))
    heads = query.shape[2] if query.shape.rank == 4 else None  # the op itself refuses any other rank
    sequences = [] if mask.sequences is None else [checked("sequence_ids", mask.sequences, tf.int32)]
    slopes = [] if mask.slopes is None else [tf.constant(mask.slopes, tf.float32)]
    if slopes:
        check_shape("slopes", slopes[0], [heads], "one for each head")
    attributes, position = attention_arguments(dropout, heads)
    context, _log_sum_exp = library().tftrain_flash_attention(
        query=query,
        key=key,
        value=value,
        key_mask=checked("key_mask", mask.keys, tf.int32),
        position=position,
        sequence_ids=sequences,
        slopes=slopes,
        scale=scale,
        causal=mask.causal,
        window=-1 if mask.window is None else mask.window,
        **attributes,
    )
    return context


@tf.RegisterGradient("TftrainFlashAttention")
def _flash_attention_gradient(
    op: tf.Operation, dcontext: tf.Tensor, _dlog_sum_exp: tf.Tensor
) -> tuple[tf.Tensor | None, ...]:
    """Returns the gradients of query, key and value.

    On a GPU, the gradients of 16-bit queries are added up atomically, in any order: this needs 5 products instead of 7.
    With op determinism they are not.
    """
    names, (query, *_) = ("query", "key", "value", "key_mask", "position"), op.inputs
    lists, count = op.inputs[len(names) :], op.get_attr("sequence_id_lists")
    context, log_sum_exp = op.outputs
    gradients = library().tftrain_flash_attention_grad(
        dcontext=dcontext,
        context=context,
        log_sum_exp=log_sum_exp,
        sequence_ids=lists[:count],
        slopes=lists[count:],
        atomic=query.dtype != tf.float32 and not is_op_determinism_enabled(),
        **dict(zip(names, op.inputs, strict=False)),
        **{name: op.get_attr(name) for name in _ATTRIBUTES},
    )
    return *gradients, None, None, *([None] * len(lists))


def reference_flash_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: AttentionMask, scale: float, dropout: Dropout | None
) -> tf.Tensor:
    """Computes `flash_attention` in plain TensorFlow: its specification; float64 too. Only b may be unknown."""
    query, key, value = (tf.transpose(tensor, [0, 2, 1, 3]) for tensor in (query, key, value))
    wide, length = wide_dtype(query.dtype), query.shape[2]
    logits = tf.cast(grouped_product(query, key, transpose_b=True), wide) * scale  # [b, heads, S, S]
    if mask.slopes is not None:
        distance = tf.range(length)[tf.newaxis, :] - tf.range(length)[:, tf.newaxis]
        logits += tf.constant(mask.slopes, wide)[:, tf.newaxis, tf.newaxis] * tf.cast(distance, wide)
    return tf.transpose(reference_attention_context(logits, value, mask, 1.0, dropout), [0, 2, 1, 3])
