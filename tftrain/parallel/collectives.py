"""What ranks say to each other: Horovod's collectives, each a plain function of a group and tensors.

In a group of one rank every function returns what it was given, so the callers have no second path. Horovod matches
collectives by name across ranks, hence the explicit names, to which the group's is added. They must stay out of
XLA-compiled functions, and their results must be used, or tf.function prunes them on some ranks only.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tftrain.parallel.layout import pack
from tftrain.parallel.mesh import Group

# A group is reduced as soon as all its gradients exist: groups small enough for the first to travel while backward
# still computes the last, large enough for the network to run at its full rate.
BUCKET_BYTES = 32 * 2**20


def all_reduce_sum(group: Group, tensors: Sequence[tf.Tensor], name: str, wire_dtype=tf.float32) -> list[tf.Tensor]:
    """Sums each tensor over the ranks of a group.

    Args:
        group: the ranks.
        tensors: any shapes and floating dtypes, the same on every rank, in the order in which they become ready.
        name: of the collective; unique in the graph and equal on every rank.
        wire_dtype: float32, or float16 to halve the bytes that travel. Horovod sends no bfloat16.

    Returns:
        The sums, in wire_dtype; on one rank, the tensors as they are.
    """
    if group.size == 1:
        return list(tensors)
    from horovod.tensorflow import mpi_ops

    summed: list[tf.Tensor] = []
    bytes_of_each = [4 * tensor.shape.num_elements() for tensor in tensors]
    for index, bucket in enumerate(pack(bytes_of_each, BUCKET_BYTES)):
        sent = [tf.cast(tensors[place], wire_dtype) for place in bucket]
        summed += mpi_ops._grouped_allreduce(sent, op=mpi_ops.Sum, **_options(group, f"{name}.{index}"))
    return summed


def all_reduce(group: Group, tensor: tf.Tensor, name: str, operation: str = "sum") -> tf.Tensor:
    """Adds up one tensor over the ranks of a group, or finds each element's maximum; dimensions may be unknown.

    Args:
        group: the ranks.
        tensor: fp32, fp16 or fp64, of the same shape on every rank.
        name: of the collective; unique in the graph and equal on every rank.
        operation: "sum" or "max".

    Returns:
        A tensor like `tensor`.
    """
    if group.size == 1:
        return tensor
    from horovod.tensorflow import mpi_ops

    reduction = {"sum": mpi_ops.Sum, "max": mpi_ops.Max}[operation]
    return mpi_ops._allreduce(tensor, op=reduction, **_options(group, name))


def reduce_scatter_sum(group: Group, tensor: tf.Tensor, bounds: Sequence[int], name: str) -> tf.Tensor:
    """Sums a tensor over the ranks of a group and leaves each with its part of the sum.

    Args:
        group: the ranks.
        tensor: fp32 or fp16 [n], n a multiple of the group's size if the parts are equal.
        bounds: where parts begin and end, one more than ranks, ascending from 0 to n; rank r's is [bounds[r],
            bounds[r + 1]).
        name: of the collective; unique in the graph and equal on every rank.

    Returns:
        This rank's part, fp32.
    """
    if group.size == 1:
        return tf.cast(tensor, tf.float32)
    from horovod.tensorflow import mpi_ops

    sizes = np.diff(bounds)
    own = int(sizes[group.rank])
    if tf.config.get_visible_devices("GPU") and np.all(sizes == own):
        part = mpi_ops._reducescatter(tensor, op=mpi_ops.Sum, **_options(group, name))
        return tf.cast(tf.ensure_shape(part, [own]), tf.float32)
    # Gloo's reduce-scatter moves its result to where it may still be sending from: with some MB, sums are wrong now
    # and then. To send each rank its part is as many bytes, and parts may differ in size.
    parts, _ = mpi_ops.alltoall(tensor, splits=tf.constant(sizes, tf.int32), **_options(group, name))
    return tf.reduce_sum(tf.cast(tf.reshape(parts, [group.size, own]), tf.float32), axis=0)


def keep(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a collective's result such that the collective takes place even where nothing is made of it.

    Graph optimizers take Horovod's operations for functions without effects and drop one whose result is of no
    consequence; if that is so on some ranks only, the others wait for ever.
    """
    if tf.executing_eagerly():
        return tensor
    with tf.control_dependencies([tf.raw_ops.Assert(condition=True, data=[tensor])]):
        return tf.identity(tensor)


def all_gather_rows(group: Group, tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Concatenates `tensor`, shape [rows, ...], over a group's ranks along its first dimension, in rank order."""
    if group.size == 1:
        return tensor
    from horovod.tensorflow import mpi_ops

    return mpi_ops.allgather(tensor, **_options(group, name))


def broadcast_variables(group: Group, variables: dict[str, tf.Variable]) -> None:
    """Gives every rank the values that the group's first rank has of named variables.

    Call eagerly, on every rank with the same names.
    """
    if group.size == 1:
        return
    from horovod.tensorflow import mpi_ops

    for name, variable in variables.items():
        sent = as_sendable(variable.read_value())
        value = mpi_ops.broadcast(sent, root_rank=group.ranks[0], **_options(group, f"broadcast.{name}"))
        variable.assign(tf.bitcast(value, variable.dtype))


def broadcast(group: Group, array: np.ndarray, name: str) -> np.ndarray:
    """Returns the array that the group's first rank has; all give one of its shape and dtype. Call eagerly."""
    if group.size == 1:
        return array
    from horovod.tensorflow import mpi_ops

    sent = tf.constant(array)
    return mpi_ops.broadcast(sent, root_rank=group.ranks[0], **_options(group, name)).numpy()


def as_sendable(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in a dtype that Horovod sends: where nothing is computed, bfloat16 may call itself float16."""
    return tf.bitcast(tensor, tf.float16) if tensor.dtype == tf.bfloat16 else tensor


def gather_numbers(group: Group, value: float, name: str) -> np.ndarray:
    """Returns one number of every rank as float64 [size]. Call eagerly, on every rank."""
    return all_gather_rows(group, tf.constant([value], tf.float64), name).numpy()


def _options(group, name):
    # Without a slash: Horovod drops what is before the last one together with the name scope.
    options = {"name": f"{group.name}.{name}".replace("/", "."), "ignore_name_scope": True}
    if group.process_set is not None:
        options["process_set"] = group.process_set
    return options
