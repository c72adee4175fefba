"""The error of sums of gradients in narrow buffers.

There are two errors: each gradient is rounded to the buffer's format, and the sum is rounded after each addition by up
to half a unit in its last place, however small the summand. The second grows with the number of micro-batches.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf


class Buffer(NamedTuple):
    """A buffer that accumulates gradients.

    Attributes:
        dtype: float32, bfloat16 or float16.
        loss_scale: factor on gradients before rounding; a power of two.
    """

    dtype: str
    loss_scale: float


class Point(NamedTuple):
    """The error of one sum.

    Attributes:
        micro_batches: number of micro-batches in the sum.
        relative_error: norm of the error over norm of the sum; None if the sum is not finite.
        vanished: share of the nonzero elements of the sum that are 0 in the buffer.
    """

    micro_batches: int
    relative_error: float | None
    vanished: float


def errors(gradients: Iterable[tf.Tensor], counts: Sequence[int], buffers: Sequence[Buffer]) -> list[list[Point]]:
    """Accumulates gradients as `tftrain.train.step` does, and compares with the sum in float64.

    The gradient of one of k micro-batches is 1 / k of that of its mean loss, times the loss scale. It is rounded to the
    buffer's dtype and added to the buffer, which is rounded again.

    Args:
        gradients: of one micro-batch after the other, each of its own mean loss, float32 [n]; at least max(counts).
        counts: micro-batches of each sum, powers of two (so that 1 / k rounds nothing).
        buffers: in which to add.

    Returns:
        For every buffer a Point for each count.
    """
    counts = sorted(counts)
    exact, sums = {}, {}
    for number, gradient in zip(range(counts[-1]), gradients, strict=False):
        if number == 0:
            exact = {count: tf.zeros(gradient.shape, tf.float64) for count in counts}
            sums = {(buffer, count): tf.zeros(gradient.shape, buffer.dtype) for buffer in buffers for count in counts}
        for count in (count for count in counts if number < count):
            exact[count] += tf.cast(gradient, tf.float64) / count
            for buffer in buffers:
                share = gradient * (buffer.loss_scale / count)
                sums[buffer, count] += tf.cast(share, buffer.dtype)
    return [[_point(count, sums[buffer, count], buffer, exact[count]) for count in counts] for buffer in buffers]


def _point(count: int, total: tf.Tensor, buffer: Buffer, exact: tf.Tensor) -> Point:
    there = exact != 0
    vanished = tf.math.count_nonzero(there & (total == 0)) / tf.math.count_nonzero(there)
    error = tf.norm(tf.cast(total, tf.float64) / buffer.loss_scale - exact) / tf.norm(exact)
    finite = tf.reduce_all(tf.math.is_finite(total))
    return Point(count, float(error) if finite else None, float(vanished))
