"""Bias, dropout and residual add in one pass, and the key of all masks.

A mask bit is a function of seed, step, site, the sample's index in the global batch and the element's place in the
sample, and of nothing else (Philox 4x32-10, Salmon et al., SC11). So no split of the batch over ranks or micro-batches
changes a mask, backward draws it again instead of keeping it, and a replay is bit-equal.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from tftrain.ops.checks import check_dtype, check_storage
from tftrain.ops.library import library

PHILOX = 1
ELEMENTS_PER_COUNT = 8  # a counter value gives 128 bits, an element takes 16
RATE_UNIT = 1 << 16
SITES = 1 << 16


class DropoutMasks(NamedTuple):
    """One dropout of the model, in one step, for one micro-batch.

    Attributes:
        rate: share of zeros, at least 0 and below 1; rounded to a multiple of 1/65536.
        seed: the run's seed.
        site: a number below 65536 of its own for every place in the model that drops.
        step: int64 scalar tensor, the update's number.
        first_sample: int64 scalar tensor, the index in the global batch of the micro-batch's first sample.
    """

    rate: float
    seed: int
    site: int
    step: tf.Tensor
    first_sample: tf.Tensor

    @property
    def drop_below(self) -> int:
        """Draws below this, of 65536, drop."""
        return round(self.rate * RATE_UNIT)

    @property
    def keep_scale(self) -> float:
        """What kept elements are multiplied by."""
        return RATE_UNIT / (RATE_UNIT - self.drop_below)

    def attributes(self) -> dict[str, int]:
        """Returns the attributes by which ops know these masks."""
        return {"drop_below": self.drop_below, "seed": self.seed, "site": self.site}

    def position(self) -> tf.Tensor:
        """Returns the input by which ops know these masks, int64 [2]."""
        return tf.stack([tf.cast(self.step, tf.int64), tf.cast(self.first_sample, tf.int64)])


def masks_or_none(masks: DropoutMasks | None) -> tuple[dict[str, int], tf.Tensor]:
    """Returns attributes and position of `masks`, or of no dropout.

    Raises:
        tf.errors.InvalidArgumentError: the rate is not in [0, 1).
    """
    if masks is None:
        return {"drop_below": 0, "seed": 0, "site": 0}, tf.zeros([2], tf.int64)
    if not 0 <= masks.rate < 1:
        raise tf.errors.InvalidArgumentError(None, None, f"rate is {masks.rate}, expected at least 0 and below 1")
    return masks.attributes(), masks.position()


def bias_dropout_add(x: tf.Tensor, bias: tf.Tensor, residual: tf.Tensor, masks: DropoutMasks | None) -> tf.Tensor:
    """Returns residual + dropout(x + bias).

    Args:
        x: [b, ..., hidden], fp32, fp16 or bf16.
        bias: [hidden], fp32, fp16 or bf16, whatever x is.
        residual: like `x`.
        masks: None in inference.

    Returns:
        A tensor like `x`.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or rate is not as above (ValueError while a graph is built).
    """
    x, bias, residual = (tf.convert_to_tensor(tensor) for tensor in (x, bias, residual))
    check_storage("x", x)
    check_storage("bias", bias)
    check_dtype("residual", residual, x.dtype, "as x")
    attributes, position = masks_or_none(masks)
    return library().tftrain_bias_dropout_add(x=x, bias=bias, residual=residual, position=position, **attributes)


@tf.RegisterGradient("TftrainBiasDropoutAdd")
def _bias_dropout_add_gradient(op, dy):
    """Returns the gradients of x, bias and residual; the mask is drawn again."""
    _x, bias, _residual, position = op.inputs
    attributes = {name: op.get_attr(name) for name in ("drop_below", "seed", "site")}
    dx, dbias = library().tftrain_bias_dropout_add_grad(dy=dy, bias=bias, position=position, **attributes)
    return dx, dbias, dy, None


def random_bits(samples: tf.Tensor, elements: int, key, site: int) -> tf.Tensor:
    """Draws sixteen bits for every element of a micro-batch.

    A sample takes ceil(elements / 8) consecutive counts, whatever remains of the last one unused.

    Args:
        samples: int32 scalar tensor, the number b of samples.
        elements: elements of one sample.
        key: what the draw depends on, beside the site: anything with seed, step and first_sample, see DropoutMasks.
        site: a number below 65536 of its own for every place in the model that drops.

    Returns:
        uint16 [b, elements].

    Raises:
        ValueError: the site is out of range.
    """
    if not 0 <= site < SITES:
        raise ValueError(f"dropout site {site}: expected a number from 0 to {SITES - 1}")
    counts = -(-elements // ELEMENTS_PER_COUNT)
    low = tf.cast(key.first_sample, tf.int64) * counts
    high = tf.cast(key.step, tf.int64) * SITES + site
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.stack([samples, counts, 4]),
        key=tf.bitcast(tf.constant([key.seed], tf.int64), tf.uint64),
        counter=tf.bitcast(tf.stack([low, high]), tf.uint64),
        alg=PHILOX,
        dtype=tf.uint32,
    )
    return tf.reshape(tf.bitcast(words, tf.uint16), [-1, counts * ELEMENTS_PER_COUNT])[:, :elements]


def reference_kept(shape: list, masks: DropoutMasks) -> tf.Tensor:
    """Draws the mask of a whole micro-batch in plain TensorFlow.

    Args:
        shape: [b, ...], of which b may be a tensor.
        masks: what the mask depends on.

    Returns:
        bool, of that shape: True where the element is kept.
    """
    bits = random_bits(shape[0], math.prod(shape[1:]), masks, masks.site)
    return tf.reshape(bits >= masks.drop_below, shape)


def reference_bias_dropout_add(
    x: tf.Tensor, bias: tf.Tensor, residual: tf.Tensor, masks: DropoutMasks | None
) -> tf.Tensor:
    """Does what `bias_dropout_add` does in plain TensorFlow: its specification. All but b must be static.

    Args:
        x, bias, residual, masks: see `bias_dropout_add`; float64 too.

    Returns:
        A tensor like `x`.
    """
    biased = x + tf.cast(bias, x.dtype)
    if masks is not None and masks.drop_below > 0:
        kept = reference_kept([tf.shape(x)[0], *x.shape[1:]], masks)
        biased *= tf.cast(kept, x.dtype) * masks.keep_scale
    return residual + biased
