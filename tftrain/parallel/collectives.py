"""What ranks say to each other: Horovod's collectives, each a plain function of a mesh and tensors.

On one rank every function returns what it was given, so the callers have no second path. Horovod matches collectives
by name across ranks, hence the explicit names. They must stay out of XLA-compiled functions, and their results must be
used, or tf.function prunes them on some ranks only.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tftrain.parallel.mesh import Mesh

# A group is reduced as soon as all its gradients exist: groups small enough for the first to travel while backward
# still computes the last, large enough for the network to run at its full rate.
BUCKET_BYTES = 32 * 2**20


def all_reduce_sum(mesh: Mesh, tensors: Sequence[tf.Tensor], name: str, wire_dtype=tf.float32) -> list[tf.Tensor]:
    """Sums each tensor over all ranks.

    Args:
        mesh: the ranks.
        tensors: any shapes and floating dtypes, the same on every rank, in the order in which they become ready.
        name: of the collective; unique in the graph and equal on every rank.
        wire_dtype: float32, or float16 to halve the bytes that travel. Horovod sends no bfloat16.

    Returns:
        The sums, in wire_dtype; on one rank, the tensors as they are.
    """
    if mesh.size == 1:
        return list(tensors)
    from horovod.tensorflow import mpi_ops

    summed: list[tf.Tensor] = []
    for index, bucket in enumerate(buckets(tensors, BUCKET_BYTES)):
        sent = [tf.cast(tensor, wire_dtype) for tensor in bucket]
        summed += mpi_ops._grouped_allreduce(sent, name=f"{name}.{index}", op=mpi_ops.Sum, ignore_name_scope=True)
    return summed


def buckets(tensors: Sequence[tf.Tensor], limit: int) -> list[list[tf.Tensor]]:
    """Splits tensors, in order, into groups of at most `limit` bytes of fp32 each, or of a single larger tensor."""
    groups: list[list[tf.Tensor]] = []
    room = 0
    for tensor in tensors:
        size = 4 * tensor.shape.num_elements()
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(tensor)
        room -= size
    return groups


def all_gather_rows(mesh: Mesh, tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Concatenates `tensor`, shape [rows, ...], over all ranks along its first dimension, in rank order."""
    if mesh.size == 1:
        return tensor
    from horovod.tensorflow import mpi_ops

    return mpi_ops.allgather(tensor, name=name, ignore_name_scope=True)


def broadcast_variables(mesh: Mesh, variables: dict[str, tf.Variable]) -> None:
    """Gives every rank the chief's values of named variables. Call eagerly, on every rank with the same names."""
    if mesh.size == 1:
        return
    from horovod.tensorflow import mpi_ops

    handles = [
        (variable, mpi_ops.broadcast(variable, root_rank=0, name=f"broadcast/{name}"))
        for name, variable in variables.items()
    ]
    for variable, value in handles:
        variable.assign(value)


def gather_numbers(mesh: Mesh, value: float, name: str) -> np.ndarray:
    """Returns one number of every rank as float64 [size]. Call eagerly, on every rank."""
    return all_gather_rows(mesh, tf.constant([value], tf.float64), name).numpy()
