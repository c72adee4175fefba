"""Backward in two halves: first the gradients of inputs, later those of kernels (arXiv 2401.10241).

The gradient of a kernel W in y = x W is x^T dy, and nothing in backward waits for it. While a part of a model is traced
with `deferred`, each `Dense` uses `Deferred.product`: the gradient of W is left out, and dy becomes the gradient of a
tap. A tap is an empty input of the traced function, which no result depends on. The kernels' gradients follow from the
inputs x, which the traced function returns, and the gradients of the taps.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import tensorflow as tf

_CURRENT: contextvars.ContextVar["Deferred | None"] = contextvars.ContextVar("deferred", default=None)


class Deferred:
    """The products of a part of a model whose kernels get their gradients later.

    Attributes:
        inputs: by kernel, x of its product, [rows, inputs]; None until the product is traced.
    """

    def __init__(self, kernels: Sequence[tf.Variable], taps: Sequence[tf.Tensor]):
        """Knows of no product yet.

        Args:
            kernels: of all products.
            taps: for each kernel a `tap` of its dtype.
        """
        self._places = {kernel.ref(): place for place, kernel in enumerate(kernels)}
        self._taps = list(taps)
        self.inputs: list[tf.Tensor | None] = [None] * len(self._taps)

    def product(self, x: tf.Tensor, kernel: tf.Variable) -> tf.Tensor:
        """Returns x W, [rows, outputs], whose gradient goes to x and to the tap of the kernel.

        Args:
            x: [rows, inputs].
            kernel: W, [inputs, outputs], one of the kernels, which no other product uses.
        """
        place, weights = self._places[kernel.ref()], tf.stop_gradient(kernel.read_value())
        self.inputs[place] = x

        @tf.custom_gradient
        def multiply(x, tap):
            def gradient(upstream):
                return tf.matmul(upstream, weights, transpose_b=True), upstream

            return tf.matmul(x, weights), gradient

        return multiply(x, self._taps[place])


def tap(dtype: tf.DType) -> tf.Tensor:
    """Returns an empty tensor whose shape a graph does not know, because its gradient has another shape."""
    return tf.raw_ops.PlaceholderWithDefault(input=tf.zeros([0], dtype), shape=tf.TensorShape(None))


@contextlib.contextmanager
def deferred(kernels: Sequence[tf.Variable], taps: Sequence[tf.Tensor]) -> Iterator[Deferred]:
    """Defers the gradients of kernels in all products that are traced within it; see `Deferred`."""
    products = Deferred(kernels, taps)
    token = _CURRENT.set(products)
    try:
        yield products
    finally:
        _CURRENT.reset(token)


def is_deferring() -> bool:
    """Whether the gradients of kernels are left for later in what is being traced."""
    return _CURRENT.get() is not None


def product(x: tf.Tensor, kernel: tf.Variable) -> tf.Tensor:
    """Returns x W, [rows, outputs]; within `deferred`, the gradient of the kernel W is left for later.

    Args:
        x: [rows, inputs].
        kernel: W, [inputs, outputs].
    """
    products = _CURRENT.get()
    return tf.matmul(x, kernel) if products is None else products.product(x, kernel)


def kernel_gradients(inputs: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the gradients of kernels, x^T dy for each x, [rows, inputs], and dy, [rows, outputs]."""
    return [tf.matmul(x, dy, transpose_a=True) for x, dy in zip(inputs, upstream, strict=True)]
