"""One collective of a group by TensorFlow's own ops, which need no negotiation and send bfloat16.

The processes connect to each other by gRPC (`tftrain.parallel.tensorflow_cluster`). A collective is matched across
ranks by two numbers: its group's and its own. They are hashes of the ranks, and of its name, dtype and shape. The first
time, rank 0 of the run resolves a number; later, the ranks exchange data at once.

On CPUs, collectives run in any order and at the same time. On GPUs they are NCCL's, which all ranks must begin in the
same order: there, TensorFlow runs them in the order of the program.
"""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tftrain.host import devices
from tftrain.parallel.mesh import Group
from tftrain.parallel.pending_collectives import run_independently

# For a sum in which each rank receives so few bytes, every rank sends its whole tensor to all others, in one exchange.
# TensorFlow's own sum sends less, in 2 (ranks - 1) exchanges.
SMALL_BYTES = 1 << 20
# A transfer has pieces of so many bytes, and the receiver asks for one after the other: gRPC holds several copies of
# what is under way, and the allocator keeps their memory.
PIECE_BYTES = 1 << 22


def number(what: object) -> int:
    """Returns a number by which all ranks know the ranks of a group, or one of its collectives."""
    return zlib.crc32(repr(what).encode()) >> 1


def _unique(name: str) -> str:
    """Returns what a graph calls an operation of this name; one that is recomputed is there a second time."""
    return tf.compat.v1.get_default_graph().unique_name(name, mark_as_used=False).rpartition("/")[2]


def _pieces(length: int, dtype: tf.DType) -> list[range]:
    """Returns the numbers of a tensor that travel together; one piece of an empty tensor."""
    starts = range(0, max(length, 1), PIECE_BYTES // dtype.size)
    return [range(start, min(start + starts.step, length)) for start in starts]


def _reduced(rows: tf.Tensor, combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Combines the rows of a tensor in their order, half precision in fp32."""
    wide = tf.cast(rows, tf.float32) if rows.dtype.size == 2 else rows
    return tf.cast(functools.reduce(combine, [wide[row] for row in range(rows.shape[0])]), rows.dtype)


class TensorFlowTransport:
    """TensorFlow's operations, each on one tensor of this rank; for what they return see `collectives`."""

    def __init__(self, group: Group, name: str):
        self._group, self._name = group, name

    def all_reduce(self, tensor: tf.Tensor, operation: str) -> tf.Tensor:
        """Returns the "sum" or "max" over the ranks; half precision is added up in fp32, and rounded once."""
        size, length = self._group.size, tensor.shape.num_elements() or 0
        reduce = functools.partial(_reduced, combine={"sum": tf.add, "max": tf.maximum}[operation])
        if length * tensor.dtype.size * (size - 1) <= SMALL_BYTES:
            return reduce(self.all_gather(tensor[tf.newaxis]))
        if size == 2 or tensor.dtype.size > 2:
            merge = {"sum": "Add", "max": "Max"}[operation]
            return self._run(tf.raw_ops.CollectiveReduceV2, tensor, merge_op=merge, final_op="Id", ordering_token=[])
        flat = tf.pad(tf.reshape(tensor, [-1]), [[0, -length % size]])
        part = reduce(self.all_to_all(tf.reshape(flat, [size, -1]), [1] * size))
        return tf.reshape(self.all_gather(part, ".sums")[:length], tensor.shape)

    def sum_in_program(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum over the ranks, inside a function that XLA compiles for GPUs, in the tensor's dtype."""
        return self._run(tf.raw_ops.CollectiveReduceV2, tensor, merge_op="Add", final_op="Id", ordering_token=[])

    def all_to_all(self, tensor: tf.Tensor, splits: Sequence[int]) -> tf.Tensor:
        """Sends `splits[r]` rows to rank r; all ranks receive equal numbers of rows."""
        if len(set(splits)) > 1:
            raise ValueError(f"{self._name}: TensorFlow's all-to-all has equal parts, given {splits}")
        parts = tf.reshape(tensor, [self._group.size, splits[0], *tensor.shape[1:]])
        return tf.reshape(self._run(tf.raw_ops.CollectiveAllToAllV2, parts, ordering_token=[]), tensor.shape)

    def all_gather(self, tensor: tf.Tensor, suffix: str = "") -> tf.Tensor:
        """Concatenates rows of the ranks, equally many of each."""
        wire = tf.bitcast(tensor, tf.float16) if tensor.dtype == tf.bfloat16 else tensor
        rows = self._run(tf.raw_ops.CollectiveGatherV2, wire, suffix, ordering_token=[])
        shape = [self._group.size * tensor.shape[0], *tensor.shape[1:]]
        return tf.bitcast(tf.ensure_shape(rows, shape), tensor.dtype)

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first rank's tensor."""
        flat = tf.reshape(tensor, [-1])
        same = self.send(flat) if self._group.rank == 0 else self.receive(flat, tensor.shape.num_elements())
        return tf.reshape(same, tensor.shape)

    def send(self, flat: tf.Tensor) -> tf.Tensor:
        """Sends a tensor, [length], to the others, which receive it."""
        pieces = _pieces(flat.shape.num_elements(), flat.dtype)
        sent = [self._run(tf.raw_ops.CollectiveBcastSendV2, flat[p.start : p.stop], f".{p.start}") for p in pieces]
        return tf.concat(sent, 0)

    def receive(self, after: tf.Tensor, length: int) -> tf.Tensor:
        """Receives [length] of the dtype of `after`, and after it."""
        received = []
        for piece in _pieces(length, after.dtype):
            name, shape = _unique(f"{self._name}.{piece.start}"), tf.TensorShape([len(piece)])
            with tf.control_dependencies([*received[-1:], after]):
                numbers = self._numbers(name, after.dtype, shape)
                received.append(tf.raw_ops.CollectiveBcastRecvV2(T=after.dtype, shape=shape, name=name, **numbers))
        return tf.concat(received, 0)

    def _run(self, op: Callable[..., tf.Tensor], tensor: tf.Tensor, suffix: str = "", **options: Any) -> tf.Tensor:
        name = _unique(self._name + suffix)
        result = op(input=tensor, name=name, **options, **self._numbers(name, tensor.dtype, tensor.shape))
        return result if devices.has_gpu() else run_independently(result)

    def _numbers(self, name: str, dtype: tf.DType, shape: tf.TensorShape) -> dict[str, Any]:
        """Returns the inputs that match an op across ranks."""
        if not shape.is_fully_defined():
            raise ValueError(f"{name}: expected a known shape, given {shape}")
        return {
            "group_size": self._group.size,
            "group_key": number(self._group.ranks),
            "instance_key": number((name, dtype.name, shape.as_list())),
            "communication_hint": "nccl" if devices.has_gpu() else "auto",
        }
