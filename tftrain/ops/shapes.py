"""Shapes of tensors in graphs: sizes of axes that a graph may not know, and values of variables by their handles."""

import tensorflow as tf


def dimension(x: tf.Tensor, axis: int) -> int | tf.Tensor:
    """Returns the size of an axis: a number where the graph knows it, as in training, else an int32 scalar."""
    size = x.shape[axis]
    return tf.shape(x)[axis] if size is None else size


def read(handle: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    """Returns the value of a variable, given its handle as an argument of a function, in the variable's shape."""
    return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype), variable.shape)
