"""Softmax of attention scores with scale, masks and dropout in one pass, and the product with the values.

Forward saves only one tensor of heads x queries x keys elements for backward: the probabilities before dropout. The
product with the values needs the probabilities after dropout, in forward and in backward. Backward recomputes them,
because it can draw the dropout masks again. That is why the product is part of this function.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.dropout import Dropout, attention_arguments, of_probabilities, reference_dropout
from tftrain.ops.grouped_heads import grouped_product, grouped_sum
from tftrain.ops.library import library
from tftrain.ops.tensors import checked, dimension, wide_dtype

Gradient = Callable[[tf.Tensor], tuple[tf.Tensor, ...]]

MASKED = -1e9  # added to a score in float32: the sum is so negative that its exponential is 0


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    values: tf.Tensor,
    mask: AttentionMask,
    scale: float,
    dropout: Dropout | None = None,
    bias: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns dropout(softmax(scale * scores)) @ values over the keys of a mask, where scores = query @ key^T + bias.

    TensorFlow keeps the inputs of a custom gradient if forward and backward are functions that a graph calls, as in a
    pipeline stage. The scores are no input here, so only the probabilities are kept of what has their size.

    Args:
        query, key, values: [b, heads, queries or keys, head_size], fp32, fp16 or bf16, of one dtype; several heads of
            queries may share a head of keys and values, see `grouped_heads`.
        mask: which keys a query attends to; `bias` has what its slopes add. The softmax does not read the scores after
            a causal query. Those of other sequences and beyond the window are computed, and then made so small that
            their probability is 0.
        scale: factor of the scores; the softmax is computed in fp32. The number of heads must be static.
        dropout: of the probabilities; None in inference. A causal mask leaves the dropout masks as they are.
        bias: what is added to the scores, [heads, queries, keys], of query's dtype; it gets no gradient.

    Returns:
        [b, heads, queries, head_size], of query's dtype; zeros, with zero gradients, for a query without keys.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or rate is not as above (ValueError while a graph is built).
    """
    attributes, position = attention_arguments(dropout, query.shape[1] if query.shape.rank == 4 else None)
    attributes |= {"scale": scale, "causal": mask.causal, "dropouts": int(attributes["drop_below"] > 0)}
    is_limited = mask.sequences is not None or mask.window is not None

    @tf.custom_gradient
    def context(query: tf.Tensor, key: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, Gradient]:
        scores = grouped_product(query, key, transpose_b=True)  # [b, heads, queries, keys]
        scores = checked("scores", scores if bias is None else scores + bias)
        keys = checked("key_mask", mask.keys, tf.int32)
        if is_limited:
            attended = mask._replace(keys=keys, causal=False).attended(dimension(query, 2))
            masked = tf.constant(max(MASKED, float(scores.dtype.min) / 2), scores.dtype)
            scores += tf.where(attended, tf.zeros([], scores.dtype), masked)
        result, backward = _context_and_gradient(scores, keys, values, position, attributes)

        def gradient(dcontext: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dscores, dvalues = backward(dcontext)
            return grouped_product(dscores, key), grouped_sum(dscores, query, key.shape[1]), dvalues

        return result, gradient

    result = context(query, key, values)
    if mask.sequences is not None:  # Every token attends to itself, and padding to nothing.
        return result * tf.cast(mask.sequences > 0, result.dtype)[:, tf.newaxis, :, tf.newaxis]
    if mask.window is not None:  # Padding may have keys in its window.
        return result * _any_key(mask.attended(dimension(query, 2)), result.dtype)
    return result


def _context_and_gradient(
    scores: tf.Tensor, key_mask: tf.Tensor, values: tf.Tensor, position: tf.Tensor, attributes: dict[str, Any]
) -> tuple[tf.Tensor, Gradient]:
    """Returns the context and the function that maps its gradient to those of scores and values."""
    dropped = library().tftrain_attention_softmax(scores=scores, key_mask=key_mask, position=position, **attributes)
    probabilities = dropped.probabilities

    def gradient(dcontext: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ddropped = grouped_product(dcontext, values, transpose_b=True)
        again = library().tftrain_attention_softmax_grad(
            ddropped=ddropped, probabilities=probabilities, position=position, **attributes
        )
        return again.dscores, grouped_sum(_dropped(again, probabilities), dcontext, values.shape[1])

    return grouped_product(_dropped(dropped, probabilities), values), gradient


def _dropped(outputs: Any, probabilities: tf.Tensor) -> tf.Tensor:
    return outputs.dropped[0] if outputs.dropped else probabilities


def reference_attention_context(
    scores: tf.Tensor, values: tf.Tensor, mask: AttentionMask, scale: float, dropout: Dropout | None = None
) -> tf.Tensor:
    """Computes `attention` of given scores in plain TensorFlow: its specification. The number of heads must be static.

    Args:
        scores: [b, heads, queries, keys], of values' dtype, or fp32 with values in 16 bits; float64 too.
        values, mask, scale, dropout: see `attention`; the scores have what the slopes add.

    Returns:
        [b, heads, queries, head_size], of values' dtype.
    """
    keys = mask.attended(dimension(scores, 2))
    probabilities = tf.cast(_softmax_over_keys(scores, keys, scale), values.dtype)
    dropped = reference_dropout(probabilities, of_probabilities(dropout))
    # For a query without keys, zeroing the context costs less than zeroing the probabilities.
    return grouped_product(dropped, values) * _any_key(keys, values.dtype)


def reference_attention_softmax(scores: tf.Tensor, mask: AttentionMask, scale: float) -> tf.Tensor:
    """Returns softmax(scale * scores), [b, heads, queries, keys], in plain TensorFlow; see `attention`; float64 too."""
    keys = mask.attended(dimension(scores, 2))
    return tf.cast(_softmax_over_keys(scores, keys, scale), scores.dtype) * _any_key(keys, scores.dtype)


def _softmax_over_keys(scores: tf.Tensor, keys: tf.Tensor, scale: float) -> tf.Tensor:
    """Returns the softmax of the scaled scores, fp32 or wider; the same for all keys of a query without keys."""
    wide = wide_dtype(scores.dtype)
    logits = tf.cast(scores, wide)
    if scale != 1:
        logits *= scale
    return tf.nn.softmax(logits + (1 - tf.cast(keys, wide)) * MASKED)


def _any_key(attended: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns 1 for a query with keys, 0 for one without: [b, 1, queries, 1], or [b, 1, 1, 1] if all have the same."""
    return tf.cast(tf.reduce_any(attended, axis=-1, keepdims=True), dtype)
