"""Dtypes and sizes of tensors: what ops store and compute in, and checks whose errors name the argument.

TensorFlow makes the same checks, but its messages do not say which argument is wrong.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import tensorflow as tf

Batch = Mapping[str, tf.Tensor]  # the features of samples by name, each with a row for each sample
STORAGE = (tf.float32, tf.float16, tf.bfloat16)


def wide_dtype(dtype: tf.DType | str) -> tf.DType:
    """Returns the dtype for sums that 16 bits would round too much: float64 for float64, else float32."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


def exact_sum(x: tf.Tensor) -> tf.Tensor:
    """Returns the sum of all elements in x's dtype, added in fp64: their order does not matter to it."""
    return tf.cast(tf.reduce_sum(tf.cast(x, tf.float64)), x.dtype)


def checked(name: str, value: tf.Tensor, expected: tf.DType | None = None, why: str = "") -> tf.Tensor:
    """Returns an argument, called `name`, as a tensor.

    Raises:
        tf.errors.InvalidArgumentError: its dtype is another than expected, by default neither fp32 nor fp16 nor bf16;
            `why` is the reason for it, "as x".
    """
    tensor = tf.convert_to_tensor(value)
    if expected is None and tensor.dtype not in STORAGE:
        _refuse(f"{name} is {tensor.dtype.name}, expected float32, float16 or bfloat16")
    if expected is not None and tensor.dtype != expected:
        _refuse(f"{name} is {tensor.dtype.name}, expected {expected.name}" + (why and f", {why}"))
    return tensor


def check_shape(name: str, tensor: tf.Tensor, expected: Sequence[int | None], why: str) -> None:
    """Raises a tf.errors.InvalidArgumentError if an argument has another rank or size, as far as known; None: any."""
    if not tensor.shape.is_compatible_with(expected):
        _refuse(f"{name} has shape {tensor.shape}, expected {tf.TensorShape(expected)}, {why}")


def _refuse(message: str) -> NoReturn:
    raise tf.errors.InvalidArgumentError(None, None, message)


def dimension(x: tf.Tensor, axis: int) -> int | tf.Tensor:
    """Returns the size of an axis: a number where the graph knows it, as in training, else an int32 scalar."""
    size = x.shape[axis]
    return tf.shape(x)[axis] if size is None else size
