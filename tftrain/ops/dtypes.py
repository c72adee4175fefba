"""The dtypes that ops store and compute in, and checks of arguments whose errors name the argument.

TensorFlow makes the same checks, but its messages do not say which argument is wrong.
"""

from collections.abc import Sequence

import tensorflow as tf

STORAGE = (tf.float32, tf.float16, tf.bfloat16)


def wide_dtype(dtype: tf.DType | str) -> tf.DType:
    """Returns the dtype for sums that 16 bits would round too much: float64 for float64, else float32."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


def check_storage(name: str, tensor: tf.Tensor) -> None:
    """Checks that an argument has a dtype in which ops store data.

    Args:
        name: the argument's name, for the message.
        tensor: the argument.

    Raises:
        tf.errors.InvalidArgumentError: it is neither fp32 nor fp16 nor bf16.
    """
    if tensor.dtype not in STORAGE:
        _refuse(f"{name} is {tensor.dtype.name}, expected float32, float16 or bfloat16")


def check_dtype(name: str, tensor: tf.Tensor, expected: tf.DType, why: str = "") -> None:
    """Checks the dtype of an argument.

    Args:
        name: the argument's name, for the message.
        tensor: the argument.
        expected: the dtype it must have.
        why: the reason for that dtype, such as "as x".

    Raises:
        tf.errors.InvalidArgumentError: it has another dtype.
    """
    if tensor.dtype != expected:
        _refuse(f"{name} is {tensor.dtype.name}, expected {expected.name}" + (why and f", {why}"))


def check_shape(name: str, tensor: tf.Tensor, expected: Sequence[int | None], why: str) -> None:
    """Checks the shape of an argument, as far as it is known.

    Args:
        name: the argument's name, for the message.
        tensor: the argument.
        expected: the shape it must have; None stands for any size.
        why: the reason for that shape, such as "as scores".

    Raises:
        tf.errors.InvalidArgumentError: it has another rank or size.
    """
    if not tensor.shape.is_compatible_with(expected):
        _refuse(f"{name} has shape {tensor.shape}, expected {tf.TensorShape(expected)}, {why}")


def _refuse(message):
    raise tf.errors.InvalidArgumentError(None, None, message)
