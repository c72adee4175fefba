"""Layers partitioned over ranks: how activations enter and leave them.

A sub-layer is two matrices. The computation between them treats each attention head, or each element of the wide layer,
independently. Each rank holds some output columns of the first matrix, and the matching input rows of the second
(Megatron-LM, Shoeybi et al., arXiv 1909.08053):

    x --enter--> its heads or columns --> its summand --leave--> y

Without sequence parallelism, x and y are equal on all ranks: `enter` copies and `leave` sums. Each is the gradient of
the other. A copied tensor is used by every rank, so its gradient is the sum of the ranks' gradients. A sum has one
gradient, which every rank needs. Horovod's own gradients assume that each rank has a loss of its own, so this module
defines its own.

With sequence parallelism (Korthikanti et al., arXiv 2205.05198), each rank has x and y of some of the tokens, and
computes norms, dropouts and residuals of these alone. `enter` is an all-gather and `leave` a reduce-scatter. Again each
is the gradient of the other, and both together send as many bytes as the sum. The gathered tensor is not kept for
backward, which gathers it again.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group


def own_copy(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a copy with its own memory, eagerly: a slice may be a view, which keeps the whole tensor in memory."""
    return tf.constant(tensor.numpy())


def cluster(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method without collectives an XLA cluster of its own, where the `ranks` of its layer say so.

    XLA can't compile Horovod's collectives. In a group of one there are none, so the caller compiles the whole.
    """
    compiled = tf.function(method, jit_compile=True, autograph=False)

    @functools.wraps(method)
    def call(layer: Any, *args: Any) -> Any:
        is_cluster = layer.ranks.jit and layer.ranks.group.size > 1
        return compiled.__get__(layer, type(layer))(*args) if is_cluster else method(layer, *args)

    return call


class TensorRanks(NamedTuple):
    """The ranks that partition every layer, and how they hold what is between the layers."""

    group: Group = Group()  # the ranks
    by_sequence: bool = False  # whether they partition the residual stream along the sequence; else each has all of it
    jit: bool = False  # whether XLA compiles what is between two collectives, see `cluster`

    @property
    def divide_sequence(self) -> bool:
        """Whether this rank has the residual stream of some of the tokens only."""
        return self.by_sequence and self.group.size > 1

    def own_tokens(self, length: int) -> tuple[int, int]:
        """Returns [first, end) of the tokens of a sequence whose residual stream this rank has."""
        return self.group.share(length) if self.divide_sequence else (0, length)

    def enter(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the input of a sharded layer, [b, S, H], equal on every rank; in a group of one, `x` itself.

        Args:
            x: the residual stream, [b, S, H], or [b, S / ranks, H] under sequence parallelism; any floating dtype.
            name: of the layer, unique in the model; the names of the collectives begin with it.
        """
        if not self.divide_sequence:
            return copy_to_ranks(self.group, x, name)

        return _with_gradient(
            x, lambda x: self._gather(x, f"{name}/enter"), lambda dy: self._scatter(dy, f"{name}/enter/gradient")
        )

    def leave(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum of the ranks' summands of a sharded layer's output; the inverse of `enter`.

        Args:
            x: this rank's summand, [b, S, H], any floating dtype; half precision is added up in fp32.

        Returns:
            [b, S, H], equal on every rank; or, under sequence parallelism, [b, S / ranks, H] of this rank's tokens.
        """
        if not self.divide_sequence:
            return sum_over_ranks(self.group, x, name)

        return _with_gradient(
            x, lambda x: self._scatter(x, f"{name}/leave"), lambda dy: self._gather(dy, f"{name}/leave/gradient")
        )

    def collect(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the residual stream of all tokens, [b, S, H], for a computation that is the same on every rank.

        Unlike the gradient of `enter`, this one is equal on all ranks; each takes the part of its own tokens.
        """
        if not self.divide_sequence:
            return x
        first, end = self.own_tokens(self.group.size * x.shape[1])
        return _with_gradient(x, lambda x: self._gather(x, f"{name}/collect"), lambda dy: dy[:, first:end])

    def entered_products(self, x: tf.Tensor, kernels: Sequence[tf.Variable], name: str, keep: bool) -> list[tf.Tensor]:
        """Returns `enter(x)` times several kernels, under sequence parallelism; only x is kept for backward.

        Each kernel is [H, outputs] of this rank, and its product [b, S, outputs]. `tf.custom_gradient` keeps the values
        of the variables that it sees; without `keep` it sees only their handles.
        """

        @tf.custom_gradient
        def multiply(x: tf.Tensor, *handles: tf.Tensor):
            def gradient(*upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()):
                with tf.control_dependencies(upstream):  # Gather now, not at once after the forward pass.
                    flat = _rows(self._gather(tf.identity(x), f"{name}/again"))
                pairs = list(zip(kernels, upstream, strict=True))
                dkernels = {kernel.ref(): tf.matmul(flat, _rows(dy), transpose_a=True) for kernel, dy in pairs}
                parts = [tf.matmul(_rows(dy), kernel, transpose_b=True) for kernel, dy in pairs]
                dx = tf.reshape(tf.add_n(parts), [-1, *upstream[0].shape[1:-1], x.shape[-1]])
                dx = self._scatter(dx, f"{name}/enter/gradient")
                return (dx, [dkernels[variable.ref()] for variable in variables]) if keep else (dx, *dkernels.values())

            whole = self._gather(x, f"{name}/enter")
            flat = _rows(whole)
            read = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=x.dtype) for handle in handles] or kernels
            products = [tf.matmul(flat, tf.ensure_shape(*pair)) for pair in zip(read, shapes, strict=True)]
            return [tf.reshape(each, [-1, whole.shape[1], each.shape[-1]]) for each in products], gradient

        shapes = [kernel.shape for kernel in kernels]
        return multiply(x, *([] if keep else [kernel.handle for kernel in kernels]))

    def _gather(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Maps [b, s, H] of each rank to [b, ranks * s, H]."""
        ranks, (length, width) = self.group.size, x.shape[1:]
        wire = collectives.as_sendable(x)
        parts = tf.reshape(collectives.all_gather_rows(self.group, wire[tf.newaxis], name), [ranks, -1, length, width])
        return tf.reshape(tf.bitcast(tf.transpose(parts, [1, 0, 2, 3]), x.dtype), [-1, ranks * length, width])

    def _scatter(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Sums [b, S, H] over the ranks, and returns [b, S / ranks, H]."""
        ranks, (length, width) = self.group.size, x.shape[1:]
        parts = tf.transpose(tf.reshape(x, [-1, ranks, length // ranks, width]), [1, 0, 2, 3])
        return tf.ensure_shape(collectives.sum_of_parts(self.group, parts, name), [None, length // ranks, width])


def _rows(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, x.shape[-1]])


def copy_to_ranks(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    """Returns x, the input of a different computation on each rank; its gradient is the sum of the ranks' gradients.

    Args:
        group: the ranks that partition the layer; in a group of one, the result is `x` itself.
        x: any shape and floating dtype, equal on every rank.
        name: of the place in the model, unique in it; the collective is `name` with "/gradient" after it.
    """
    if group.size == 1:
        return x

    return _with_gradient(x, tf.identity, lambda upstream: _sum(group, upstream, f"{name}/gradient"))


def sum_over_ranks(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the sum of the ranks' tensors, equal on every rank; the gradient is that of the sum.

    As for `copy_to_ranks`, but x differs between ranks, in one shape, and the collective is called `name`. Half
    precision is added up in fp32.
    """
    if group.size == 1:
        return x

    return _with_gradient(x, lambda x: _sum(group, x, name), lambda upstream: upstream)


def _with_gradient(
    x: tf.Tensor, function: Callable[[tf.Tensor], tf.Tensor], gradient: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Returns function(x), whose gradient is that of another function."""
    return tf.custom_gradient(lambda x: (function(x), gradient))(x)


def _sum(group: Group, x: tf.Tensor, name: str) -> tf.Tensor:
    # Horovod cannot send bf16, and would round each addition of fp16, where a partial sum of scaled gradients may also
    # overflow. TensorFlow's transport sends 16 bits and adds in fp32.
    wire = x.dtype if group.by_tensorflow or x.dtype == tf.float64 else tf.float32
    return tf.cast(collectives.all_reduce(group, tf.cast(x, wire), name), x.dtype)
