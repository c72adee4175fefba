"""Layers divided among ranks (Megatron-LM, Shoeybi et al., arXiv 1909.08053): bounds of parts, and two functions.

A sub-layer is two matrices. The computation between them treats each attention head, or each element of the wide layer,
independently. Each rank holds some output columns of the first matrix, and the matching input rows of the second:

    x --copy_to_ranks--> its heads or columns --> its part of a sum --sum_over_ranks--> y

x and y are equal on all ranks. Each function is the gradient of the other. A copied tensor is used by every rank, so
its gradient is the sum of the ranks' gradients. A sum has one gradient, which every rank needs. Horovod's own gradients
assume that each rank has a loss of its own, so this module defines its own.
"""

import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group


def own_copy(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a copy with its own memory, eagerly: a slice may be a view, which keeps the whole tensor in memory."""
    return tf.constant(tensor.numpy())


def copy_to_ranks(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    """Returns x, the input of a different computation on each rank; its gradient is the sum of the ranks' gradients.

    Args:
        group: the ranks that divide the layer.
        x: any shape and floating dtype, equal on every rank.
        name: of the place in the model, unique in it; the collective is `name` with "/gradient" behind.

    Returns:
        A tensor like `x`; in a group of one, `x` itself.
    """
    if group.size == 1:
        return x

    @tf.custom_gradient
    def copy(x):
        return tf.identity(x), lambda upstream: _sum(group, upstream, f"{name}/gradient")

    return copy(x)


def sum_over_ranks(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the sum of the ranks' tensors, equal on every rank; the gradient is that of the sum.

    Args:
        group: the ranks that divide the layer.
        x: any shape and floating dtype, the same on every rank; half precision is added up in fp32.
        name: of the place in the model and of the collective.

    Returns:
        A tensor like `x`; in a group of one, `x` itself.
    """
    if group.size == 1:
        return x

    @tf.custom_gradient
    def total(x):
        return _sum(group, x, name), lambda upstream: upstream

    return total(x)


def _sum(group, x, name):
    # Horovod cannot send bf16. It can send fp16, but then each addition would round, whereas the matrix product of one
    # rank rounds once. A partial sum of scaled gradients could also overflow although the full sum does not.
    wire = tf.float64 if x.dtype == tf.float64 else tf.float32
    return tf.cast(collectives.all_reduce(group, tf.cast(x, wire), name), x.dtype)
