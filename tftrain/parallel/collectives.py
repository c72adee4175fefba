"""Horovod's collectives, each a plain function of a group and tensors.

In a group of one rank every function returns its input, so callers need no special case. Horovod matches collectives by
name across ranks, so each has an explicit name, prefixed by the group's. Collectives must stay out of XLA-compiled
functions, and their results must be used; otherwise tf.function prunes them, perhaps on some ranks only.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tftrain.parallel.layout import pack
from tftrain.parallel.mesh import Group
from tftrain.parallel.pending_collectives import Collective

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
    summed: list[tf.Tensor] = []
    bytes_of_each = [4 * tensor.shape.num_elements() for tensor in tensors]
    for index, bucket in enumerate(pack(bytes_of_each, BUCKET_BYTES)):
        sent = [tf.cast(tensors[place], wire_dtype) for place in bucket]
        if wire_dtype == tf.float16 and not _has_nccl():
            summed += _sum_in_fp32(group, sent, f"{name}.{index}")
        else:
            summed += _together(group, "all-reduce", f"{name}.{index}", sent, _grouped_sum)
    return summed


def _sum_in_fp32(group, tensors, name):
    """Sums tensors with as many bytes on the wire, each element by one rank: Gloo adds fp16 one by one, in software."""
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
    length = flat.shape[0]
    bounds = [rank * length // group.size for rank in range(group.size + 1)]
    part = reduce_scatter_sum(group, flat, bounds, f"{name}.parts")
    whole = tf.ensure_shape(all_gather_rows(group, tf.cast(part, flat.dtype), f"{name}.sums"), [length])
    pieces = tf.split(whole, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


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

    def reduce(hvd, given, **options):
        return hvd._allreduce(given[0], op={"sum": hvd.Sum, "max": hvd.Max}[operation], **options)

    return _together(group, "all-reduce", name, [tensor], reduce)


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
    sizes = np.diff(bounds)
    own = int(sizes[group.rank])
    if _has_nccl() and np.all(sizes == own):

        def scatter(hvd, given, **options):
            return hvd._reducescatter(given[0], op=hvd.Sum, **options)

        part = _together(group, "reduce-scatter", name, [tensor], scatter)
        return tf.cast(tf.ensure_shape(part, [own]), tf.float32)

    # Gloo's reduce-scatter may overwrite memory that it is still sending: with buckets of some MB, a sum is sometimes
    # wrong. An all-to-all sends as many bytes, and its parts may differ in size.
    def exchange(hvd, given, **options):
        return hvd.alltoall(given[0], splits=tf.constant(sizes, tf.int32), **options)

    parts, _ = _together(group, "all-to-all", name, [tensor], exchange)
    return tf.reduce_sum(tf.cast(tf.reshape(parts, [group.size, own]), tf.float32), axis=0)


def prevent_pruning(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a collective's result in a way that keeps the collective in the graph even if the result is not used.

    Graph optimizers treat Horovod's operations as free of side effects and drop one whose result is unused. If they do
    so on some ranks only, the others wait for ever.
    """
    if tf.executing_eagerly():
        return tensor
    with tf.control_dependencies([tf.raw_ops.Assert(condition=True, data=[tensor])]):
        return tf.identity(tensor)


def all_gather_rows(group: Group, tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Concatenates `tensor`, shape [rows, ...], over a group's ranks along its first dimension, in rank order."""
    if group.size == 1:
        return tensor

    def gather(hvd, given, **options):
        return hvd.allgather(given[0], **options)

    return _together(group, "all-gather", name, [tensor], gather)


def broadcast_variables(group: Group, variables: dict[str, tf.Variable]) -> None:
    """Gives every rank the values that the group's first rank has of named variables.

    Call eagerly, on every rank with the same names.
    """
    if group.size == 1:
        return
    for name, variable in variables.items():
        value = _broadcast(group, as_sendable(variable.read_value()), f"broadcast.{name}")
        variable.assign(tf.bitcast(value, variable.dtype))


def broadcast(group: Group, array: np.ndarray, name: str) -> np.ndarray:
    """Returns the array that the group's first rank has; all give one of its shape and dtype. Call eagerly."""
    if group.size == 1:
        return array
    return _broadcast(group, tf.constant(array), name).numpy()


def as_sendable(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in a dtype that Horovod sends: bfloat16 bits travel as float16, since nothing is computed."""
    return tf.bitcast(tensor, tf.float16) if tensor.dtype == tf.bfloat16 else tensor


def gather_numbers(group: Group, value: float, name: str) -> np.ndarray:
    """Returns one number of every rank as float64 [size]. Call eagerly, on every rank."""
    return all_gather_rows(group, tf.constant([value], tf.float64), name).numpy()


def is_peer_failure(error: BaseException) -> bool:
    """Returns whether a collective failed because another rank has ended or can't be reached."""
    # Horovod's own message, or Gloo's, which names its source file, if a connection breaks while it is in use.
    return any(words in str(error) for words in ("Horovod has been shut down", "gloo/transport"))


def _grouped_sum(hvd, given, **options):
    return hvd._grouped_allreduce(given, op=hvd.Sum, **options)


def _has_nccl():
    import horovod.tensorflow as hvd

    return bool(tf.config.get_visible_devices("GPU")) and hvd.nccl_built()


def _broadcast(group, tensor, name):
    def send(hvd, given, **options):
        return hvd.broadcast(given[0], root_rank=group.ranks[0], **options)

    return _together(group, "broadcast", name, [tensor], send)


def _together(group, kind, name, tensors, operation):
    """Runs one of Horovod's operations, and records when this rank begins and ends it.

    Args:
        group: the ranks.
        kind: of the collective, for messages.
        name: of the collective in its group.
        tensors: this rank's inputs.
        operation: called with Horovod's module, the tensors and Horovod's options; returns the result.
    """
    from horovod.tensorflow import mpi_ops

    # Without a slash: Horovod drops what is before the last one together with the name scope.
    options = {"name": f"{group.name}.{name}".replace("/", "."), "ignore_name_scope": True}
    if group.process_set is not None:
        options["process_set"] = group.process_set
    collective = Collective(kind, options["name"], group.ranks)
    return group.pending.around(collective, tensors, lambda given: operation(mpi_ops, given, **options))
