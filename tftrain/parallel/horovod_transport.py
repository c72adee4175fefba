"""One collective of a group by Horovod, which matches it across ranks by its name, in any order.

The tensors travel by NCCL between GPUs, else by Gloo or MPI. Horovod sends no bfloat16.
"""

from collections.abc import Sequence

import tensorflow as tf

from tftrain.parallel.mesh import Group


class HorovodTransport:
    """Horovod's operations, each on one tensor of this rank; for what they return see `collectives`."""

    def __init__(self, group: Group, name: str):
        """Prepares for one collective; its name has no slash: Horovod drops what is before the last one."""
        from horovod.tensorflow import mpi_ops

        self._hvd, self._group, self._options = mpi_ops, group, {"name": name, "ignore_name_scope": True}
        if group.process_set is not None:
            self._options["process_set"] = group.process_set

    def all_reduce(self, tensor: tf.Tensor, operation: str) -> tf.Tensor:
        """Returns the "sum" or "max" over the ranks."""
        operations = {"sum": self._hvd.Sum, "max": self._hvd.Max}
        return self._hvd._allreduce(tensor, op=operations[operation], **self._options)

    def grouped_all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sum of each tensor."""
        return self._hvd._grouped_allreduce(tensors, op=self._hvd.Sum, **self._options)

    def reduce_scatter(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns this rank's part of the sum; all parts have the same size."""
        return self._hvd._reducescatter(tensor, op=self._hvd.Sum, **self._options)

    def all_to_all(self, tensor: tf.Tensor, splits: Sequence[int]) -> tf.Tensor:
        """Sends `splits[r]` rows to rank r."""
        return self._hvd.alltoall(tensor, splits=tf.constant(splits, tf.int32), **self._options)[0]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Concatenates rows of the ranks, which may differ in number."""
        return self._hvd.allgather(tensor, **self._options)

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first rank's tensor."""
        return self._hvd.broadcast(tensor, root_rank=self._group.ranks[0], **self._options)

    def send(self, flat: tf.Tensor) -> tf.Tensor:
        """Sends [n] in a group of two. Horovod has no send: only one rank sends something in an all-to-all."""
        return self.all_to_all(flat, [0 if rank == self._group.rank else flat.shape[0] for rank in range(2)])

    def receive(self, empty: tf.Tensor, length: int) -> tf.Tensor:
        """Receives [length] in a group of two; `empty`, [0], has the dtype, and the transfer begins after it."""
        return tf.ensure_shape(self.all_to_all(empty, [0, 0]), [length])
