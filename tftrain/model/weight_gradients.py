"""Backward in two halves: first the gradients of inputs, later those of kernels (arXiv 2401.10241).

The gradient of a kernel W in y = x W is x^T dy, and nothing in backward waits for it. A `Dense` that is called with a
`Deferred` computes its product there: the gradient of W is left out, and dy becomes the gradient of a tap. A tap is an
empty input of the traced function, which no result depends on. The kernels' gradients follow from the inputs x, which
the traced function returns, and the gradients of the taps.
"""

from collections.abc import Sequence

import tensorflow as tf


class Deferred:
    """The products of some layers whose kernels get their gradients later.

    Attributes:
        inputs: by kernel, x of its product, [rows, inputs]; None until the product is traced.
    """

    def __init__(self, kernels: Sequence[tf.Variable], taps: Sequence[tf.Tensor]):
        """Takes the kernels of all products, and for each a `tap` of its dtype."""
        self._index = {kernel.ref(): index for index, kernel in enumerate(kernels)}
        self._taps = list(taps)
        self.inputs: list[tf.Tensor | None] = [None] * len(self._taps)

    def product(self, x: tf.Tensor, kernel: tf.Variable) -> tf.Tensor:
        """Returns x W, [rows, outputs], whose gradient goes to x, [rows, inputs], and to the tap of the kernel.

        W, [inputs, outputs], is one of the kernels, which no other product uses.
        """
        index, weights = self._index[kernel.ref()], tf.stop_gradient(kernel.read_value())
        self.inputs[index] = x

        @tf.custom_gradient
        def multiply(x: tf.Tensor, _tap: tf.Tensor):
            return tf.matmul(x, weights), lambda upstream: (tf.matmul(upstream, weights, transpose_b=True), upstream)

        return multiply(x, self._taps[index])


def tap(dtype: tf.DType) -> tf.Tensor:
    """Returns an empty tensor whose shape a graph does not know, for a gradient, or a variable, of another shape."""
    return tf.raw_ops.PlaceholderWithDefault(input=tf.zeros([0], dtype), shape=tf.TensorShape(None))


def kernel_gradients(inputs: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the gradients of kernels, x^T dy for each x, [rows, inputs], and dy, [rows, outputs]."""
    return [tf.matmul(x, dy, transpose_a=True) for x, dy in zip(inputs, upstream, strict=True)]
