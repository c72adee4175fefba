"""Checks of arguments that TensorFlow itself makes, but reports without their names."""

import tensorflow as tf


def check_dtype(name: str, tensor: tf.Tensor, expected: tf.DType, why: str) -> None:
    """Checks the dtype of one argument.

    Args:
        name: the argument's name, for the message.
        tensor: the argument.
        expected: the dtype it must have.
        why: where that comes from, such as "as x".

    Raises:
        tf.errors.InvalidArgumentError: it has another dtype.
    """
    if tensor.dtype != expected:
        message = f"{name} is {tensor.dtype.name}, expected {expected.name}, {why}"
        raise tf.errors.InvalidArgumentError(None, None, message)
