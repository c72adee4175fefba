"""Positions that the attention knows by itself: rotated queries and keys, or scores that fall with the distance."""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tftrain.families.rope import RopeScaling
from tftrain.ops.tensors import dimension, wide_dtype


def frequencies(size: int, theta: float, scaling: RopeScaling | None) -> np.ndarray:
    """Returns the angles by which the pairs of a head of `size` elements turn from a position to the next, float64.

    The size is even, and theta is the base of the wavelengths.
    """
    frequencies = theta ** (-np.arange(size // 2) / (size / 2))
    if scaling is None:
        return frequencies
    waves = scaling.length * frequencies / (2 * math.pi)  # turns of each pair over a sequence before the scaling
    as_before = np.clip((waves - scaling.low) / (scaling.high - scaling.low), 0, 1)
    return frequencies * (as_before + (1 - as_before) / scaling.factor)


def rotate(x: tf.Tensor, theta: float, scaling: RopeScaling | None, positions: tf.Tensor | None = None) -> tf.Tensor:
    """Rotates the elements of each head by angles that are proportional to the position (Su et al., arXiv 2104.09864).

    Element i of the first half of a head and element i of the second half are one pair, as in GPT-NeoX and Llama. At
    position p, the pair turns by p * theta^(-2 i / head_size), before the scaling.

    Args:
        x: queries or keys, [b, S, heads, head_size], head_size even and static.
        theta, scaling: see `frequencies` and `RopeScaling`.
        positions: int32 [b, S]; None: 0, 1, ... in every row.

    Returns:
        A tensor like `x`, computed in fp32 (float64 for float64) and rounded once.
    """
    length, size = dimension(x, 1), x.shape[3]
    wide = wide_dtype(x.dtype)
    steps = frequencies(size, theta, scaling)
    if positions is None and isinstance(length, int):
        angles = np.outer(np.arange(length), steps)  # [S, head_size / 2]
        cosine, sine = (tf.constant(function(angles)[:, np.newaxis], wide) for function in (np.cos, np.sin))
    else:
        positions = tf.range(length) if positions is None else positions
        angles = tf.cast(positions, tf.float64)[..., tf.newaxis] * steps
        cosine, sine = (tf.cast(function(angles)[..., tf.newaxis, :], wide) for function in (tf.cos, tf.sin))
    first, second = tf.split(tf.cast(x, wide), 2, axis=-1)
    turned = tf.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return tf.cast(turned, x.dtype)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Returns the slope of each head (Press et al., arXiv 2108.12409, section 3 and the authors' code).

    For a power of two, the slopes are 2^(-8 / heads), its square, and so on. Else the largest power of two below
    `heads` gives the first slopes, and every other slope of twice that number gives the rest.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return tuple((slopes + between)[:heads])


def distance_bias(
    slopes: Sequence[float], length: int, dtype: tf.DType, positions: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns what is added to the scaled scores: minus the slope of the head times the distance of the key.

    Args:
        slopes: of this rank's heads.
        positions: int32 [b, 1, queries], of the queries; None: those of the keys, in every row.

    Returns:
        [heads, S, S], or [b, heads, queries, S]; for keys after the query, which a causal mask hides, it is positive.
    """
    keys = tf.range(length)
    queries = keys if positions is None else positions
    distance = tf.cast(keys - queries[..., tf.newaxis], dtype)  # key - query
    return tf.constant(slopes, dtype)[:, tf.newaxis, tf.newaxis] * distance
