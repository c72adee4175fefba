"""Variables that have their values only while a block computes: each rank holds a shard of the weights (ZeRO-3).

Such a variable is released as soon as it exists: it has its dtype and static shape, and no elements. `fill` gives it
the gathered value before a computation, and `release` frees the memory afterwards. So the layers read variables as they
always do. A layer that reads a released variable fails, because the shapes of its operands do not match.

Nothing may hold a gathered value from forward to backward: neither the tensors that backward keeps (`ReadAgain`), nor
small ones that share the memory of a gathered bucket (`fill`). `tf.custom_gradient` is no way around that: it keeps its
arguments and the values of the variables that are read in it. So plain operations get other gradients.
"""

import numpy as np
import tensorflow as tf

from tftrain.model.weight_gradients import tap
from tftrain.parallel.pending_collectives import run_independently

# Backward may keep a tensor of fewer elements, such as a bias or the scale of a norm.
KEPT_ELEMENTS = 2**16


def fill(variable: tf.Variable, value: tf.Tensor) -> None:
    """Gives a released variable its value, of its shape and dtype; in a traced function or eagerly."""
    if 1 in value.shape:
        # Grappler drops a reshape that adds an axis of one element before an assignment, and the variable would have
        # the shape without it. This gives a copy whose shape is that of the indices.
        value = tf.gather(tf.reshape(value, [-1]), np.arange(value.shape.num_elements()).reshape(value.shape))
    elif value.shape.num_elements() < KEPT_ELEMENTS:
        value = _copy(value)
    # `assign` would compare the shapes.
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def release(variable: tf.Variable) -> None:
    """Frees the memory of a variable, whose value must not be read before `fill`."""
    empty = tf.zeros([0], variable.dtype) if tf.executing_eagerly() else tap(variable.dtype)
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty)


class ReadAgain:
    """Products of layers with kernels that backward reads again; a layer takes it in the place of a `Deferred`."""

    def product(self, x: tf.Tensor, kernel: tf.Variable) -> tf.Tensor:
        """Returns x W, [rows, outputs], for x, [rows, inputs], and a kernel W, [inputs, outputs]."""
        with tf.compat.v1.get_default_graph().gradient_override_map({"MatMul": "TftrainReadAgain"}):
            return tf.matmul(x, kernel)


@tf.RegisterGradient("TftrainReadAgain")
def _product_gradient(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradients of x and W.

    Backward keeps x as it was before its reshapes: other operations keep that tensor too, and a compiled function would
    return one copy for each shape.
    """
    x, kernel = op.inputs
    kept = x
    while kept.op.type == "Reshape":
        kept = kept.op.inputs[0]
    x = tf.reshape(kept, [-1, x.shape[-1]])
    again = tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=_handle_of(kernel), dtype=kernel.dtype), kernel.shape)
    return tf.matmul(upstream, again, transpose_b=True), tf.matmul(x, upstream, transpose_a=True)


def _handle_of(value: tf.Tensor) -> tf.Tensor:
    """Returns the handle of the variable that was read in a traced function, as the callers of the function know it."""
    handle = value.op.inputs[0]
    while isinstance(handle, tf.Tensor) and not hasattr(handle, "numpy"):
        handle = next(outer for outer, inner in handle.graph.captures if inner is handle)
    return handle


def _copy(value: tf.Tensor) -> tf.Tensor:
    """Returns a tensor with its own memory; a slice of another tensor may share that one's."""
    return run_independently(tf.raw_ops.DeepCopy(x=value))
