"""Dtypes and sizes of tensors: what ops store and compute in, and checks whose errors name the argument.

TensorFlow makes the same checks, but its messages do not say which argument is wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

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

    Raises a tf.errors.InvalidArgumentError if its dtype is not `expected`, for the reason `why`, such as "as x"; or,
    without an expected one, if it is neither fp32 nor fp16 nor bf16.
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


def chunk_by_chunk(
    rows: Callable[[tf.Tensor], Sequence[tf.Tensor]], size: int, specs: Sequence[tf.TensorSpec], jit: bool
) -> list[tf.Tensor]:
    """Returns tensors that are computed some rows at a time, each in one buffer: of chunks and their stack, it is half.

    Args:
        rows: maps the number of a row to `size` rows of each tensor from there on; the last two calls may overlap.
        specs: shapes, [n, ...] with n >= size, and dtypes.
        jit: whether XLA compiles this.
    """
    total = specs[0].shape[0]
    count = -(-total // size)

    def body(index: tf.Tensor, *found: tf.Tensor) -> list[tf.Tensor]:
        first = tf.minimum(index * size, total - size)
        numbers, new = first + tf.range(size), zip(found, rows(first), strict=True)
        if jit:
            return [tf.tensor_scatter_nd_update(whole, numbers[:, tf.newaxis], part) for whole, part in new]
        # Outside of XLA, the other operation copies the whole tensor.
        return [tf.raw_ops.InplaceUpdate(x=whole, i=numbers, v=part) for whole, part in new]

    # These are no constants, which would be written to.
    empty = [tf.raw_ops.Empty(shape=spec.shape, dtype=spec.dtype, init=True) for spec in specs]
    return in_turn(body, empty, count)


def in_turn(body: Callable[..., Sequence], initial: Sequence, stop: int | tf.Tensor, start: int = 0) -> list:
    """Computes values = body(index, *values) for each index from `start` on, and returns the last values."""

    def step(index: tf.Tensor, *values: Any) -> tuple:
        return (index + 1, *body(index, *values))

    # With a second counter, maximum_iterations, XLA would not know the count: the host would ask the GPU each time.
    _, *values = tf.while_loop(
        lambda index, *_: index < stop, step, (tf.constant(start), *initial), parallel_iterations=1
    )
    return values
