"""Softmax of attention scores with scale, masks and dropout in one pass, and the product with the values.

Forward saves only one tensor of heads x queries x keys elements for backward: the probabilities before dropout. The
product with the values needs the probabilities after dropout, in forward and in backward. Backward recomputes them,
because it can draw the dropout masks again. That is why the product is part of this function.
"""

import tensorflow as tf

from tftrain.ops.dropout import Dropout, op_arguments, reference_dropout
from tftrain.ops.dtypes import check_dtype, check_storage, wide_dtype
from tftrain.ops.grouped_heads import grouped_product, grouped_sum
from tftrain.ops.library import library
from tftrain.ops.shapes import dimension

MASKED = -1e9  # added to a score in float32: the sum is so negative that its exponential is 0


def attention_softmax(scores: tf.Tensor, key_mask: tf.Tensor, scale: float, causal: bool = False) -> tf.Tensor:
    """Returns softmax(scale * scores) over the keys that a query attends to, computed in fp32.

    Args:
        scores: [b, heads, queries, keys], fp32, fp16 or bf16.
        key_mask: int32 [b, keys], positive for a key, else padding, to which no query attends.
        scale: factor of the scores.
        causal: whether a query attends only to its own position and to those before it; it needs as many queries as
            keys. The scores of the positions after it are neither read nor computed with.

    Returns:
        A tensor like `scores`; zeros, with zero gradients, for a key that a query does not attend to, and for a query
        that attends to none.

    Raises:
        tf.errors.InvalidArgumentError: a shape or dtype is not as above (ValueError while a graph is built).
    """
    scores, key_mask = _checked(scores, key_mask)
    attributes, position = _op_arguments(scores, None)
    made = library().tftrain_attention_softmax(
        scores=scores, key_mask=key_mask, position=position, scale=scale, causal=causal, **attributes
    )
    return made.probabilities


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    values: tf.Tensor,
    key_mask: tf.Tensor,
    scale: float,
    dropout: Dropout | None = None,
    causal: bool = False,
    bias: tf.Tensor | None = None,
    sequences: tf.Tensor | None = None,
    window: int | None = None,
) -> tf.Tensor:
    """Returns dropout(softmax(scale * scores)) @ values, where scores = query @ key^T + bias, within each sequence.

    TensorFlow keeps the inputs of a custom gradient if forward and backward are functions that a graph calls, as in a
    pipeline stage. The scores are no input here, so only the probabilities are kept of what has their size.

    Args:
        query, key, values: [b, heads, queries or keys, head_size], of one dtype; several heads of queries may share a
            head of keys and values, see `grouped_heads`.
        key_mask, scale, causal: see `attention_softmax`; the number of heads must be static.
        dropout: of the probabilities; None in inference. A causal mask leaves the dropout masks as they are.
        bias: what is added to the scores, [heads, queries, keys], of query's dtype; it gets no gradient.
        sequences: int32 [b, S], 0 for padding: a query attends only to keys with its own number. It needs as many
            queries as keys. The scores of other keys are computed, and then made so small that their probability is 0.
            None: to all keys.
        window: the largest distance of a key that a query attends to, computed like `sequences`; None: any.

    Returns:
        [b, heads, queries, head_size], of query's dtype.

    Raises:
        tf.errors.InvalidArgumentError: see `attention_softmax`; or the rate is not in [0, 1).
    """
    attributes, position = _op_arguments(query, dropout)
    attributes |= {"scale": scale, "causal": causal}
    is_limited = sequences is not None or window is not None

    @tf.custom_gradient
    def context(query, key, values):
        scores = grouped_product(query, key, transpose_b=True)  # [b, heads, queries, keys]
        scores, checked = _checked(scores if bias is None else scores + bias, key_mask)
        if is_limited:
            attended = _attended(checked, dimension(query, 2), False, sequences, window)
            masked = tf.constant(max(MASKED, float(scores.dtype.min) / 2), scores.dtype)
            scores += tf.where(attended, tf.zeros([], scores.dtype), masked)
        made, backward = _context_and_gradient(scores, checked, values, position, attributes)

        def gradient(dcontext):
            dscores, dvalues = backward(dcontext)
            return grouped_product(dscores, key), grouped_sum(dscores, query, key.shape[1]), dvalues

        return made, gradient

    made = context(query, key, values)
    if sequences is not None:  # Every token attends to itself, and padding to nothing.
        return made * tf.cast(sequences > 0, made.dtype)[:, tf.newaxis, :, tf.newaxis]
    if window is not None:  # Padding may have keys in its window.
        return made * _any_key(_attended(key_mask, dimension(query, 2), causal, window=window), made.dtype)
    return made


def _context_and_gradient(scores, key_mask, values, position, attributes):
    """Returns the context and the function that maps its gradient to those of scores and values."""
    made = library().tftrain_attention_softmax(scores=scores, key_mask=key_mask, position=position, **attributes)
    probabilities = made.probabilities

    def gradient(dcontext):
        ddropped = grouped_product(dcontext, values, transpose_b=True)
        again = library().tftrain_attention_softmax_grad(
            ddropped=ddropped, probabilities=probabilities, position=position, **attributes
        )
        return again.dscores, grouped_sum(_dropped(again, probabilities), dcontext, values.shape[1])

    return grouped_product(_dropped(made, probabilities), values), gradient


def _checked(scores, key_mask):
    scores, key_mask = tf.convert_to_tensor(scores), tf.convert_to_tensor(key_mask)
    check_storage("scores", scores)
    check_dtype("key_mask", key_mask, tf.int32)
    return scores, key_mask


def _dropped(made, probabilities):
    return made.dropped[0] if made.dropped else probabilities


def _op_arguments(scores, dropout):
    """Returns the op's attributes, except for `scale` and `causal`, and its input `position`."""
    attributes, position = op_arguments(dropout)
    first, total = (dropout and dropout.part) or (0, scores.shape[1] if scores.shape.rank == 4 else 0)
    attributes |= {"first_head": first, "total_heads": total or 0, "dropouts": int(attributes["drop_below"] > 0)}
    return attributes, position


@tf.RegisterGradient("TftrainAttentionSoftmax")
def _attention_softmax_gradient(op, dprobabilities, *_ddropped):
    """Returns the gradient of the scores, without dropout; `attention` has its own."""
    names = ("scale", "causal", "drop_below", "seed", "site", "first_head", "total_heads", "dropouts")
    attributes = {name: op.get_attr(name) for name in names}
    if attributes["dropouts"]:
        raise LookupError("TftrainAttentionSoftmax with dropout has no gradient: use attention, which has one")
    made = library().tftrain_attention_softmax_grad(
        ddropped=dprobabilities, probabilities=op.outputs[0], position=op.inputs[2], **attributes
    )
    return made.dscores, None, None


def reference_attention_context(
    scores: tf.Tensor,
    key_mask: tf.Tensor,
    values: tf.Tensor,
    scale: float,
    dropout: Dropout | None = None,
    causal: bool = False,
    sequences: tf.Tensor | None = None,
    window: int | None = None,
) -> tf.Tensor:
    """Computes `attention` of given scores in plain TensorFlow: its specification. The number of heads must be static.

    Args:
        scores: see `attention_softmax`; float64 too; or fp32 with values in 16 bits.
        key_mask, values, scale, dropout, causal, sequences, window: see `attention`.

    Returns:
        [b, heads, queries, head_size], of values' dtype.
    """
    keys = _attended(key_mask, dimension(scores, 2), causal, sequences, window)
    probabilities = tf.cast(_softmax_over_keys(scores, keys, scale), values.dtype)
    # For a query without keys, zeroing the context costs less than zeroing the probabilities.
    return grouped_product(reference_dropout(probabilities, dropout), values) * _any_key(keys, values.dtype)


def reference_attention_softmax(
    scores: tf.Tensor, key_mask: tf.Tensor, scale: float, causal: bool = False
) -> tf.Tensor:
    """Computes `attention_softmax` in plain TensorFlow: its specification; float64 too."""
    keys = _attended(key_mask, dimension(scores, 2), causal)
    return tf.cast(_softmax_over_keys(scores, keys, scale), scores.dtype) * _any_key(keys, scores.dtype)


def _softmax_over_keys(scores, keys, scale):
    """Returns the softmax of the scaled scores, fp32 or wider; the same for all keys of a query without keys."""
    wide = wide_dtype(scores.dtype)
    logits = tf.cast(scores, wide)
    if scale != 1:
        logits *= scale
    hidden = 1 - tf.cast(keys, wide)
    return tf.nn.softmax(logits + hidden * MASKED)


def _attended(key_mask, queries, causal, sequences=None, window=None):
    """Returns which keys a query attends to: bool [b, 1, queries, keys]; [b, 1, 1, keys] if they are all the same."""
    attended = (key_mask > 0)[:, None, None, :]
    if causal:
        attended &= tf.range(dimension(key_mask, 1)) <= tf.range(queries)[:, None]
    if sequences is not None:
        attended &= (sequences[:, :, None] == sequences[:, None, :])[:, None]
    if window is not None:
        attended &= tf.abs(tf.range(dimension(key_mask, 1)) - tf.range(queries)[:, None]) <= window
    return attended


def _any_key(attended, dtype):
    """Returns 1 for a query with keys, 0 for one without: [b, 1, queries, 1], or [b, 1, 1, 1] if all have the same."""
    return tf.cast(tf.reduce_any(attended, axis=-1, keepdims=True), dtype)
