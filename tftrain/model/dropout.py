"""Dropout whose mask belongs to the sample, not to the batch it happens to be computed in.

A mask bit is a function of (seed, step, site, the sample's index in the global batch, the element's place within the
sample) and of nothing else. So any number of ranks, any micro-batch size, a recomputed block and a resumed run all see
the same masks. Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) is a function of a
key and a counter, which makes this a matter of where the counter starts.

The bits are compared as integers: TensorFlow's kernels and XLA draw the same integers but turn them into different
floats. Sixteen bits an element are enough to hit a rate within 1/131072, at half the price of thirty-two.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from tftrain.ops.attention_softmax import HeadRange
from tftrain.ops.dropout import DropoutMasks, random_bits


class DropoutKey(NamedTuple):
    """What the masks of one micro-batch depend on.

    Attributes:
        seed: the run's seed.
        step: int64 scalar tensor, the update's number.
        first_sample: int64 scalar tensor, the index in the global batch of the micro-batch's first sample; the others
            follow it.
    """

    seed: int
    step: tf.Tensor
    first_sample: tf.Tensor


def dropout(x: tf.Tensor, rate: float, key: DropoutKey | None, site: int, heads: HeadRange | None = None) -> tf.Tensor:
    """Zeroes a share of the elements and scales the others up, so that the expectation stays.

    Args:
        x: [b, ...], any float dtype; the first axis is the sample, the others are static.
        rate: share of zeros, at least 0 and below 1; rounded to a multiple of 1/65536.
        key: None in inference: then `x` comes back.
        site: a number below 65536 of its own for every place in the model that drops.
        heads: which heads the second axis holds, where ranks divide them; None: all there are.

    Returns:
        A tensor like `x`.
    """
    drop_below = round(rate * 2**16)  # of 65536 values
    if key is None or drop_below == 0:
        return x
    drawn = x.shape[1:] if heads is None else [heads.total, *x.shape[2:]]
    bits = tf.reshape(random_bits(tf.shape(x)[0], math.prod(drawn), key, site), [-1, *drawn])
    if heads is not None:  # a count of the draw may reach over two heads, so they are all drawn
        bits = bits[:, heads.first : heads.first + x.shape[1]]
    kept = tf.cast(bits >= drop_below, x.dtype)
    return x * (kept * (2**16 / (2**16 - drop_below)))


def masks(rate: float, key: DropoutKey | None, site: int) -> DropoutMasks | None:
    """Returns what `dropout` would draw, in the form in which the fused ops take it; None where nothing drops."""
    return None if key is None or rate == 0 else DropoutMasks(rate, key.seed, site, key.step, key.first_sample)
