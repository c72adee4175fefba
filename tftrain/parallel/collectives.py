"""Collectives, each a plain function of a group and tensors.

In a group of one rank every function returns its input, so callers need no special case. The group's transport, Horovod
or TensorFlow, matches collectives by name across ranks: a `name` is unique in the graph and equal on every rank, and
the group's is put before it. The tensors of a sum, a maximum or a broadcast have the same shape on every rank.
Collectives must stay out of XLA-compiled functions, and their results must be used; otherwise tf.function prunes them,
perhaps on some ranks only.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tftrain.host import devices
from tftrain.parallel.horovod_transport import HorovodTransport
from tftrain.parallel.mesh import Group
from tftrain.parallel.pending_collectives import Collective
from tftrain.parallel.tensorflow_transport import TensorFlowTransport


def all_reduce(group: Group, tensor: tf.Tensor, name: str, operation: str = "sum") -> tf.Tensor:
    """Returns the "sum" or "max" of a tensor over the ranks: fp32, fp16 or fp64; dimensions may be unknown."""
    return _together(group, "all-reduce", name, tensor, lambda by, given: by.all_reduce(given, operation))


def sum_in_rank_order(group: Group, tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Adds up a small fp32 tensor [n] over the ranks, with the same bits in every group whose ranks have the same.

    An all-reduce gives equal bits to the ranks of one group, but it may add in another order in another group. Here
    each rank's numbers travel in a row of their own, and every rank adds the rows in the order of the ranks.
    """
    if group.size == 1:
        return tensor
    rows = tf.pad(tensor[tf.newaxis], [[group.rank, group.size - group.rank - 1], [0, 0]])
    return tf.add_n(tf.unstack(all_reduce(group, rows, name)))


def grouped_all_reduce(group: Group, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
    """Sums several tensors over the ranks, in one operation: fp32, fp16 or fp64 and of any shapes."""
    return _together(group, "all-reduce", name, list(tensors), lambda by, given: by.grouped_all_reduce(given))


def reduce_scatter_sum(group: Group, tensor: tf.Tensor, bounds: Sequence[int], name: str) -> tf.Tensor:
    """Sums a tensor over the ranks and leaves each with its part of the sum.

    Args:
        tensor: fp32 or fp16 [n].
        bounds: ascending from 0 to n, one more than ranks; rank r's part is [bounds[r], bounds[r + 1]).

    Returns:
        This rank's part, fp32.
    """
    if group.size == 1:
        return tf.cast(tensor, tf.float32)
    sizes = np.diff(bounds)
    own, length = int(sizes[group.rank]), int(bounds[-1])
    if sizes.max() > -(-length // group.size):
        # The owner of a large part would receive a copy of it from every rank. Each rank adds up an equal part instead,
        # and sends the sums to their owners: no rank receives more than `n` numbers at once.
        even = [rank * length // group.size for rank in range(group.size + 1)]
        part = reduce_scatter_sum(group, tensor, even, f"{name}.even_parts")
        splits = np.diff(np.clip(bounds, even[group.rank], even[group.rank + 1]))
        return tf.cast(tf.ensure_shape(_all_to_all(group, part, splits, name), [own]), tf.float32)
    if has_nccl() and np.all(sizes == own):
        part = _together(group, "reduce-scatter", name, tensor, lambda by, given: by.reduce_scatter(given))
        return tf.cast(tf.ensure_shape(part, [own]), tf.float32)

    # Gloo's reduce-scatter may overwrite memory that it is still sending: with buckets of some MB, a sum is sometimes
    # wrong. An all-to-all sends as many bytes, and its parts may differ in size.
    parts = _all_to_all(group, tensor, sizes, name)
    return tf.reduce_sum(tf.cast(tf.reshape(parts, [group.size, own]), tf.float32), axis=0)


def sum_of_parts(group: Group, parts: tf.Tensor, name: str) -> tf.Tensor:
    """Sums a tensor of equal parts over the ranks and leaves each with its part, in the tensor's dtype.

    Each rank receives its part from every rank and adds them up in fp32 or wider. So 16-bit numbers travel as they are,
    and the sum is rounded once.

    Args:
        parts: [ranks, ...], of any floating dtype; other dimensions may be unknown.

    Returns:
        The sum of this rank's parts, [...].
    """
    received = _all_to_all(group, as_sendable(parts), [1] * group.size, name)
    wide = tf.float64 if parts.dtype == tf.float64 else tf.float32
    return tf.cast(tf.reduce_sum(tf.cast(tf.bitcast(received, parts.dtype), wide), axis=0), parts.dtype)


def send(group: Group, tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Sends a tensor to the other rank of a group of two, which calls `receive` with the same name.

    The tensor has any shape, and a dtype that Horovod sends, or bfloat16.

    Returns:
        A tensor that is there once this one is sent. If it is not used, see `prevent_pruning`.
    """
    flat = tf.reshape(as_sendable(tensor), [-1])
    return _together(group, "transfer", name, flat, lambda by, given: by.send(given))


def receive(group: Group, shape: Sequence[int], dtype: tf.DType, name: str) -> tf.Tensor:
    """Receives a tensor of this shape and dtype from the other rank of a group of two, see `send`."""
    empty, length = as_sendable(tf.zeros([0], dtype)), math.prod(shape)
    flat = _together(group, "transfer", name, empty, lambda by, given: by.receive(given, length))
    return tf.reshape(tf.bitcast(flat, dtype), shape)


def prevent_pruning(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a collective's result, and keeps the collective in the graph even if the result is not used.

    Graph optimizers treat Horovod's operations as free of side effects and drop one whose result is unused. If they do
    so on some ranks only, the others wait for ever.
    """
    if tf.executing_eagerly():
        return tensor
    with tf.control_dependencies([tf.raw_ops.Assert(condition=True, data=[tensor])]):
        return tf.identity(tensor)


def all_gather_rows(group: Group, tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Concatenates `tensor`, shape [rows, ...], over a group's ranks along its first dimension, in rank order."""
    return _together(group, "all-gather", name, tensor, lambda by, given: by.all_gather(given))


def broadcast(group: Group, tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the tensor of the group's first rank, bit for bit, on every rank; any dtype that Horovod sends."""
    return _together(group, "broadcast", name, tensor, lambda by, given: by.broadcast(given))


def broadcast_variables(group: Group, variables: dict[str, tf.Variable]) -> None:
    """Assigns the first rank's values of named variables to those of every rank; call eagerly, with the same names."""
    if group.size == 1:
        return
    for name, variable in variables.items():
        value = broadcast(group, as_sendable(variable.read_value()), f"broadcast.{name}")
        variable.assign(tf.bitcast(value, variable.dtype))


def as_sendable(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in a dtype that Horovod sends: bfloat16 bits travel as float16, since nothing is computed."""
    return tf.bitcast(tensor, tf.float16) if tensor.dtype == tf.bfloat16 else tensor


def gather_numbers(group: Group, value: float, name: str) -> np.ndarray:
    """Returns one number of every rank as float64 [size]. Call eagerly, on every rank."""
    return all_gather_rows(group, tf.constant([value], tf.float64), name).numpy()


def gather_values(group: Group, value: Any, name: str) -> list[Any]:
    """Returns the value of every rank, in JSON's types, in rank order. Call eagerly, on every rank."""
    data = json.dumps(value).encode()
    lengths = gather_numbers(group, float(len(data)), f"{name}.lengths").astype(int)
    rows = all_gather_rows(group, tf.constant(np.frombuffer(data, np.uint8)), name).numpy()
    return [json.loads(part.tobytes()) for part in np.split(rows, np.cumsum(lengths)[:-1])]


def is_peer_failure(error: BaseException) -> bool:
    """Returns whether a collective failed because another rank has ended or can't be reached."""
    # The message is Horovod's or Gloo's. Gloo's names its source file, when a connection breaks during a transfer.
    if any(words in str(error) for words in ("Horovod has been shut down", "gloo/transport")):
        return True
    # When one of TensorFlow's collectives fails, all do, on the other ranks too; other reasons have other classes.
    return isinstance(error, tf.errors.UnavailableError) and "Collective ops is aborted" in str(error)


def has_nccl() -> bool:
    """Whether Horovod sends between GPUs by NCCL."""
    import horovod.tensorflow as hvd

    return devices.has_gpu() and bool(hvd.nccl_built())


def transport() -> str:
    """Returns in words how tensors travel between the GPUs of several ranks."""
    import horovod.tensorflow as hvd

    if not has_nccl():
        return "through host memory: Horovod has no NCCL"
    number = hvd.nccl_built()  # such as 23203
    return f"by NCCL {number // 10000}.{number // 100 % 100}.{number % 100}"


def _all_to_all(group: Group, tensor: tf.Tensor, splits: Sequence[int] | np.ndarray, name: str) -> tf.Tensor:
    """Sends `splits[r]` rows of a tensor to rank r; returns what this rank receives, in the order of the ranks."""
    return _together(group, "all-to-all", name, tensor, lambda by, given: by.all_to_all(given, splits))


def _together(group: Group, kind: str, name: str, given: Any, operation: Callable[..., Any]) -> Any:
    """Calls an operation with the group's transport and a tensor or a list, between records of its begin and end."""
    if group.size == 1:
        return given
    # Without a slash: in a graph, only what is after the last one is independent of the scope.
    name = f"{group.name}.{name}".replace("/", ".")
    transport = (TensorFlowTransport if group.by_tensorflow else HorovodTransport)(group, name)
    return group.pending.around(Collective(kind, name, group.ranks), given, lambda given: operation(transport, given))
