"""Partitions the optimizer's state (ZeRO): whole tensors to each rank's shards of flat buckets, and back."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from tftrain.config.parallel import BUCKET_BYTES
from tftrain.optim.state_layout import Partitioned, Slice, layout
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group


class StateSplit:
    """Converts between whole tensors and this rank's flat shard of each bucket.

    Attributes:
        group, buckets: the ranks over which tensors are partitioned, and the buckets, see `layout`.
        slices: the slices of this rank's shard of each bucket.
    """

    def __init__(self, group: Group, tensors: Sequence[Partitioned], shapes: Sequence[tf.TensorShape], strategy: str):
        """Partitions tensors of these shapes; for the other arguments, see `layout`."""
        self.group, self._shapes, self._sizes = group, shapes, [each.size for each in tensors]
        self.buckets = layout(strategy, tensors, group.size, BUCKET_BYTES // 4)
        self.slices: list[list[Slice]] = [bucket.slices(group.rank, self._sizes) for bucket in self.buckets]

    def take(self, whole: Callable[[int], tf.Tensor]) -> Iterator[tf.Tensor]:
        """Yields this rank's shard of each bucket, flat, of whole tensors that are equal on all ranks.

        `whole` returns a tensor by its index. It is called only for those that this rank owns elements of, one bucket
        after the other.
        """
        for bucket, slices in zip(self.buckets, self.slices, strict=True):
            ranges = {tensor: range_ for tensor, _, range_ in bucket.owned(self.group.rank, self._sizes)}
            owned = {tensor: tf.reshape(whole(tensor), [-1])[range_] for tensor, range_ in ranges.items()}
            dtype = next(iter(owned.values())).dtype if owned else tf.float32
            yield tf.concat(
                [tf.zeros([size], dtype) if tensor is None else owned[tensor] for tensor, size in slices], axis=0
            )

    def reduce_all(self, tensors: Sequence[tf.Tensor], name: str, wire_dtype: tf.DType) -> list[tf.Tensor]:
        """Sums tensors over the ranks, one of each shape; returns this rank's shard of each bucket, see `reduce`."""
        indexed = dict(enumerate(tensors))
        return [self.reduce(number, indexed, f"{name}.{number}", wire_dtype) for number in range(len(self.buckets))]

    def reduce(self, number: int, tensors: Mapping[int, tf.Tensor], name: str, wire_dtype: tf.DType) -> tf.Tensor:
        """Sums the tensors of a bucket over the ranks; returns the sum of this rank's shard, flat, in fp32.

        The tensors, by index, are of any floating dtypes and different on each rank; float32 or float16 travels. The
        name of the collective is unique in the graph and equal on every rank.
        """
        bucket = self.buckets[number]
        pieces = [  # with zeros as padding
            tf.zeros([size], wire_dtype) if index is None else tf.reshape(tf.cast(tensors[index], wire_dtype), [-1])
            for index, size in bucket.slices(None, self._sizes)
        ]
        return collectives.reduce_scatter_sum(self.group, tf.concat(pieces, axis=0), bucket.bounds, name)

    def gather(self, number: int, shard: tf.Tensor, name: str) -> Iterator[tuple[int, tf.Tensor]]:
        """Collects the tensors of a bucket from the shards of all ranks, and yields index and value of each.

        For the name, see `reduce`.
        """
        bucket = self.buckets[number]
        flat = collectives.all_gather_rows(self.group, collectives.as_sendable(shard), name)
        flat = tf.bitcast(tf.ensure_shape(flat, [bucket.bounds[-1]]), shard.dtype)
        for tensor, offset in zip(bucket.tensors, bucket.offsets, strict=True):
            yield tensor, tf.reshape(flat[offset : offset + self._sizes[tensor]], self._shapes[tensor])
