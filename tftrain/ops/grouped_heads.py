"""Products of attention heads with keys or values that several heads share (Ainslie et al., arXiv 2305.13245).

The rows of all heads that share a matrix are the rows of one product, so no key and no value is copied.
"""

import tensorflow as tf

from tftrain.ops.tensors import dimension


def grouped_product(x: tf.Tensor, y: tf.Tensor, transpose_b: bool = False) -> tf.Tensor:
    """Returns x y, or x y', for each head; head h meets number h // (heads / shared) of the shared matrices.

    Args:
        x: [b, heads, m, k].
        y: [b, shared, k, n], or [b, shared, n, k]; the number of heads is a multiple of `shared`.

    Returns:
        [b, heads, m, n].
    """
    return _split(tf.matmul(_joined(x, y.shape[1]), y, transpose_b=transpose_b), x)


def grouped_sum(x: tf.Tensor, y: tf.Tensor, shared: int) -> tf.Tensor:
    """Returns x' y, summed over the heads that share a matrix: the gradient of the `shared` matrices.

    With x of [b, heads, m, k] and y of [b, heads, m, n], it is [b, shared, k, n].
    """
    return tf.matmul(_joined(x, shared), _joined(y, shared), transpose_a=True)


def _joined(x: tf.Tensor, shared: int) -> tf.Tensor:
    """Maps [b, heads, m, n] to [b, shared, heads / shared * m, n]."""
    heads = x.shape[1]
    if heads == shared:
        return x
    return tf.reshape(x, [-1, shared, heads // shared * dimension(x, 2), dimension(x, 3)])


def _split(product: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Maps [b, shared, heads / shared * m, n] to [b, heads, m, n], with the heads and rows of x."""
    if product.shape[1] == x.shape[1]:
        return product
    return tf.reshape(product, [-1, x.shape[1], dimension(x, 2), dimension(product, 3)])
