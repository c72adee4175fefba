"""Sizes of tensors in graphs that serve sequences of any length."""

import tensorflow as tf


def dimension(x: tf.Tensor, axis: int) -> int | tf.Tensor:
    """Returns the size of an axis: a number where the graph knows it, as in training, else an int32 scalar."""
    size = x.shape[axis]
    return tf.shape(x)[axis] if size is None else size
