"""Dropout with one mask per sample, whatever the batch split, and the op for bias, dropout and residual in one pass.

A mask bit is a function of seed, step, site, the sample's index in the global batch and the element's index in the
sample, and of nothing else. So no split of the batch over ranks or micro-batches changes a mask; backward, a
recomputed block and a resumed run draw the same mask again. Philox 4x32-10 (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC11) maps a key and a counter to random bits, so it is enough to choose where the counter starts.

The bits are compared as integers: TensorFlow's kernels and XLA draw the same integers but convert them to different
floats. With sixteen bits per element, the error of the rate is at most 1/131072, at half the cost of thirty-two bits.
Attention probabilities, the most elements of all, draw eight bits each, as in FlashAttention 2 (arXiv 2307.08691): the
rate is a multiple of 1/256. What is kept is scaled by the rate as rounded, so the expectation is exact.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from tftrain.ops.library import library
from tftrain.ops.tensors import checked, wide_dtype

PHILOX = 1
BITS_PER_COUNT = 128
DRAWS = {8: tf.uint8, 16: tf.uint16}  # dtypes by the bits of an element
PROBABILITY_BITS = 8  # an attention probability draws so many; checkpoints contain the number
RATE_UNIT = 1 << 16
SITES = 1 << 16


class DropoutKey(NamedTuple):
    """The key of all dropout masks of one micro-batch."""

    seed: int  # the run's
    step: tf.Tensor  # int64 scalar, the number of the update
    first_sample: tf.Tensor  # int64 scalar, the index in the global batch of the first sample; the others follow it


class AxisRange(NamedTuple):
    """What one tensor parallel rank has of the axis after the samples: some attention heads, or some tokens."""

    first: int  # index of its first head or token among all
    total: int  # number of heads or tokens on all ranks together


class Dropout(NamedTuple):
    """Dropout at one site of the model, for one micro-batch."""

    rate: float  # share of zeros, at least 0 and below 1; rounded to a multiple of 1/65536, or of 1/256 with 8 bits
    site: int  # a number below 65536; every layer of the model that drops has its own
    key: DropoutKey  # what the masks of the micro-batch depend on
    part: AxisRange | None = None  # along axis 1, where tensor parallel ranks divide that axis; None: all of it
    bits: int = 16  # that an element draws; 8 for attention probabilities

    @property
    def drop_below(self) -> int:
        """An element is dropped if its random number, as a share of 65536, is below this; from 0 to 65536."""
        return round(self.rate * (1 << self.bits)) << (16 - self.bits)

    @property
    def keep_scale(self) -> float:
        """Factor of the elements that are not dropped, which keeps the expectation."""
        return RATE_UNIT / (RATE_UNIT - self.drop_below)


def dropout_at(key: DropoutKey | None, rate: float, site: int, part: AxisRange | None = None) -> Dropout | None:
    """Returns the dropout of one site; None where nothing drops: without a key (inference) or with rate 0."""
    return None if key is None or rate == 0 else Dropout(rate, site, key, part)


def of_probabilities(dropout: Dropout | None) -> Dropout | None:
    """Returns the dropout as attention probabilities take it: with eight bits for each."""
    return dropout and dropout._replace(bits=PROBABILITY_BITS)


def op_arguments(dropout: Dropout | None) -> tuple[dict[str, int], tf.Tensor]:
    """Returns the attributes that an op takes for `dropout`, or for no dropout, and its input: step and first sample.

    Raises a tf.errors.InvalidArgumentError if the rate is not in [0, 1).
    """
    if dropout is None:
        return {"drop_below": 0, "seed": 0, "site": 0}, tf.zeros([2], tf.int64)
    if not 0 <= dropout.rate < 1:
        raise tf.errors.InvalidArgumentError(None, None, f"rate is {dropout.rate}, expected at least 0 and below 1")
    attributes = {"drop_below": dropout.drop_below, "seed": dropout.key.seed, "site": dropout.site}
    return attributes, tf.stack([tf.cast(value, tf.int64) for value in dropout.key[1:]])


def attention_arguments(dropout: Dropout | None, heads: int | None) -> tuple[dict[str, int], tf.Tensor]:
    """Returns what `op_arguments` does for attention of so many heads on this rank, with the place of these heads."""
    attributes, position = op_arguments(of_probabilities(dropout))
    first, total = (dropout and dropout.part) or (0, heads or 0)
    return {**attributes, "first_head": first, "total_heads": total}, position


def bias_dropout_add(x: tf.Tensor, bias: tf.Tensor, residual: tf.Tensor, dropout: Dropout | None) -> tf.Tensor:
    """Returns residual + dropout(x + bias).

    Args:
        x: [b, ..., hidden], fp32, fp16 or bf16.
        bias: [hidden], fp32, fp16 or bf16, independent of x's dtype.
        residual: like `x`.
        dropout: None in inference.

    Returns:
        A tensor like `x`.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or rate is not as above (ValueError while a graph is built).
    """
    x, bias = checked("x", x), checked("bias", bias)
    residual = checked("residual", residual, x.dtype, "as x")
    attributes, position = op_arguments(dropout)
    if dropout is not None and dropout.part is not None:
        rows = math.prod(x.shape[2:-1])  # rows of the op for each index of axis 1
        attributes |= {"first_row": dropout.part.first * rows, "total_rows": dropout.part.total * rows}
    return library().tftrain_bias_dropout_add(x=x, bias=bias, residual=residual, position=position, **attributes)


@tf.RegisterGradient("TftrainBiasDropoutAdd")
def _bias_dropout_add_gradient(op: tf.Operation, dy: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
    """Returns the gradients of x, bias and residual; backward draws the mask again."""
    _x, bias, _residual, position = op.inputs
    attributes = {name: op.get_attr(name) for name in ("drop_below", "seed", "site", "first_row", "total_rows")}
    dx, dbias = library().tftrain_bias_dropout_add_grad(dy=dy, bias=bias, position=position, **attributes)
    return dx, dbias, dy, None


def reference_bias_dropout_add(
    x: tf.Tensor, bias: tf.Tensor | None, residual: tf.Tensor, dropout: Dropout | None
) -> tf.Tensor:
    """Computes `bias_dropout_add` in plain TensorFlow: its specification; float64 too.

    All dimensions but b must be static; bias is None where x contains it already.
    """
    biased = x if bias is None else x + tf.cast(bias, x.dtype)
    return residual + reference_dropout(biased, dropout)


def reference_dropout(x: tf.Tensor, dropout: Dropout | None) -> tf.Tensor:
    """Zeroes a share of the elements and scales the others up, so that the expectation stays.

    Args:
        x: [b, ...], any float dtype; the first axis is the sample, the others are static.
        dropout: None in inference: then `x` itself comes back.

    Returns:
        A tensor like `x`. The factor is applied in fp32 (float64 for float64), and the result is rounded once.
    """
    if dropout is None or dropout.drop_below == 0:
        return x
    keep = tf.cast(keep_mask([tf.shape(x)[0], *x.shape[1:]], dropout), x.dtype)
    return tf.cast(tf.cast(x * keep, wide_dtype(x.dtype)) * dropout.keep_scale, x.dtype)


def keep_mask(shape: list, dropout: Dropout) -> tf.Tensor:
    """Draws the mask of a micro-batch in plain TensorFlow: bool, True where the element stays.

    `shape` is that of the tensor that drops, [b, ...]; b may be a tensor, the others are numbers.
    """
    samples, *rest = shape
    threshold = dropout.drop_below >> (16 - dropout.bits)
    if dropout.part is None:
        draws = random_bits(samples, math.prod(rest), dropout.key, dropout.site, dropout.bits)
        return tf.reshape(draws >= threshold, shape)
    # One count of the generator may span two heads or tokens, so this draws the bits of all of them.
    first, total = dropout.part
    draws = random_bits(samples, total * math.prod(rest[1:]), dropout.key, dropout.site, dropout.bits)
    draws = tf.reshape(draws, [samples, total, *rest[1:]])
    return draws[:, first : first + rest[0]] >= threshold


def random_bits(samples: tf.Tensor, elements: int, key: DropoutKey, site: int, bits: int = 16) -> tf.Tensor:
    """Draws sixteen or eight bits for every element of a micro-batch.

    A sample takes ceil(elements * bits / 128) consecutive counts; the rest of its last count is unused.

    `samples`, an int32 scalar tensor, is the number b of samples. For the other arguments, see `Dropout`.

    Returns:
        uint16 [b, elements], or uint8.

    Raises:
        ValueError: the site is out of range.
    """
    if not 0 <= site < SITES:
        raise ValueError(f"dropout site {site}: expected a number from 0 to {SITES - 1}")
    counts = -(-elements * bits // BITS_PER_COUNT)
    low = tf.cast(key.first_sample, tf.int64) * counts
    high = tf.cast(key.step, tf.int64) * SITES + site
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.stack([samples, counts, 4]),
        key=tf.bitcast(tf.constant([key.seed], tf.int64), tf.uint64),
        counter=tf.bitcast(tf.stack([low, high]), tf.uint64),
        alg=PHILOX,
        dtype=tf.uint32,
    )
    return tf.reshape(tf.bitcast(words, DRAWS[bits]), [-1, counts * (BITS_PER_COUNT // bits)])[:, :elements]
