"""Softmax of attention scores with scale, padding mask and dropout in one pass, and the product with the values.

Of all tensors of heads x queries x keys elements, one is kept from forward to backward: the probabilities. The dropped
ones are what the product with the values needs, in both directions; backward makes them again in the pass that it makes
anyway, because the masks can be drawn again. That is why the product is part of this function.
"""

from typing import NamedTuple

import tensorflow as tf

from tftrain.ops.checks import check_dtype, check_shape, check_storage
from tftrain.ops.dropout import DropoutMasks, masks_or_none, reference_kept
from tftrain.ops.library import library


class HeadRange(NamedTuple):
    """Which heads these are, where ranks share them.

    Attributes:
        first: index of the first among all.
        total: how many there are on all ranks together.
    """

    first: int
    total: int


def attention_softmax(scores: tf.Tensor, key_mask: tf.Tensor, scale: float) -> tf.Tensor:
    """Returns softmax(scale * scores) over the keys that the mask leaves, computed in fp32.

    Args:
        scores: [b, heads, queries, keys], fp32, fp16 or bf16.
        key_mask: int32 [b, keys], positive for a key, else padding.
        scale: what scores are multiplied by.

    Returns:
        A tensor like `scores`; zeros, with zero gradients, for a sample without keys.

    Raises:
        tf.errors.InvalidArgumentError: a shape or dtype is not as above (ValueError while a graph is built).
    """
    scores, key_mask = _checked(scores, key_mask)
    attributes, position = masks_or_none(None)
    return (
        library()
        .tftrain_attention_softmax(
            scores=scores,
            key_mask=key_mask,
            position=position,
            scale=scale,
            dropouts=0,
            **attributes,
            **_heads(scores, None),
        )
        .probabilities
    )


def attention_context(
    scores: tf.Tensor,
    key_mask: tf.Tensor,
    values: tf.Tensor,
    scale: float,
    masks: DropoutMasks | None = None,
    heads: HeadRange | None = None,
) -> tf.Tensor:
    """Returns dropout(softmax(scale * scores)) @ values.

    Args:
        scores, key_mask, scale: see `attention_softmax`; scores with a static number of heads.
        values: [b, heads, keys, head_size], of scores' dtype.
        masks: of the probabilities; None in inference.
        heads: None where this rank has all of them.

    Returns:
        [b, heads, queries, head_size], of scores' dtype.

    Raises:
        tf.errors.InvalidArgumentError: see `attention_softmax`; or the rate is not in [0, 1).
    """
    scores, key_mask = _checked(scores, key_mask)
    values = tf.convert_to_tensor(values)
    check_dtype("values", values, scores.dtype, "as scores")
    if scores.shape.rank == 4:  # if not, the op says so
        batch, number, _queries, keys = scores.shape
        check_shape("values", values, [batch, number, keys, None], "as scores")
    attributes, position = masks_or_none(masks)
    attributes |= {"scale": scale, "dropouts": int(attributes["drop_below"] > 0), **_heads(scores, heads)}

    @tf.custom_gradient
    def context(scores, values):
        made = library().tftrain_attention_softmax(scores=scores, key_mask=key_mask, position=position, **attributes)
        probabilities = made.probabilities

        def gradient(dcontext):
            ddropped = tf.matmul(dcontext, values, transpose_b=True)
            again = library().tftrain_attention_softmax_grad(
                ddropped=ddropped, probabilities=probabilities, position=position, **attributes
            )
            return again.dscores, tf.matmul(_dropped(again, probabilities), dcontext, transpose_a=True)

        return tf.matmul(_dropped(made, probabilities), values), gradient

    return context(scores, values)


def _checked(scores, key_mask):
    scores, key_mask = tf.convert_to_tensor(scores), tf.convert_to_tensor(key_mask)
    check_storage("scores", scores)
    check_dtype("key_mask", key_mask, tf.int32)
    return scores, key_mask


def _dropped(made, probabilities):
    return made.dropped[0] if made.dropped else probabilities


def _heads(scores, heads):
    first, total = heads or (0, scores.shape[1] if scores.shape.rank == 4 else 0)
    return {"first_head": first, "total_heads": total or 0}


@tf.RegisterGradient("TftrainAttentionSoftmax")
def _attention_softmax_gradient(op, dprobabilities, *_ddropped):
    """Returns the gradient of the scores, without dropout; `attention_context` has its own."""
    names = ("scale", "drop_below", "seed", "site", "first_head", "total_heads", "dropouts")
    attributes = {name: op.get_attr(name) for name in names}
    if attributes["dropouts"]:
        raise LookupError("with dropout, the gradient of the attention softmax is that of attention_context")
    made = library().tftrain_attention_softmax_grad(
        ddropped=dprobabilities, probabilities=op.outputs[0], position=op.inputs[2], **attributes
    )
    return made.dscores, None, None


def reference_attention_context(
    scores: tf.Tensor,
    key_mask: tf.Tensor,
    values: tf.Tensor,
    scale: float,
    masks: DropoutMasks | None = None,
    heads: HeadRange | None = None,
) -> tf.Tensor:
    """Does what `attention_context` does in plain TensorFlow: its specification. All but b must be static.

    Args:
        scores, key_mask, values, scale, masks, heads: see `attention_context`; float64 too.

    Returns:
        [b, heads, queries, head_size], of scores' dtype.
    """
    probabilities = reference_attention_softmax(scores, key_mask, scale)
    if masks is not None and masks.drop_below > 0:
        first, total = heads or (0, scores.shape[1])
        kept = reference_kept([tf.shape(scores)[0], total, *scores.shape[2:]], masks)[
            :, first : first + scores.shape[1]
        ]
        probabilities *= tf.cast(kept, scores.dtype) * masks.keep_scale
    return tf.matmul(probabilities, values)


def reference_attention_softmax(scores: tf.Tensor, key_mask: tf.Tensor, scale: float) -> tf.Tensor:
    """Does what `attention_softmax` does in plain TensorFlow; float64 too."""
    wide = tf.float64 if scores.dtype == tf.float64 else tf.float32
    key = tf.cast(key_mask > 0, wide)[:, None, None, :]
    probabilities = tf.nn.softmax(tf.cast(scores, wide) * scale + (1 - key) * -1e9)
    return tf.cast(probabilities * tf.reduce_max(key, axis=-1, keepdims=True), scores.dtype)
