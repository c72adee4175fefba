"""ZeRO (Rajbhandari et al., arXiv 1910.02054): gradients go to the ranks that own them, weights come back from there.

Instead of one all-reduce of the gradients, each bucket is summed into the parts of their owners (a reduce-scatter), and
when the owners have updated their parts, all ranks collect them (an all-gather): together the bytes of the all-reduce,
and half of the second half where weights have 16 bits.
"""

from collections.abc import Hashable, Iterator, Sequence

import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.layout import Bucket, Segment, layout
from tftrain.parallel.mesh import Group


class StateSplit:
    """Whole tensors on one side, this rank's flat part of each bucket on the other.

    Attributes:
        group: the ranks among which tensors are divided.
        buckets: who owns what.
        segments: what this rank's part of each bucket is made of.
    """

    def __init__(
        self,
        group: Group,
        names: Sequence[str],
        shapes: Sequence[tf.TensorShape],
        strategy: str,
        kinds: Sequence[Hashable] | None = None,
    ):
        """Divides tensors of these names and shapes, which are the same on all ranks of the group, see `layout`."""
        self.group, self._shapes = group, [tf.TensorShape(shape) for shape in shapes]
        self._sizes = [shape.num_elements() for shape in self._shapes]
        kinds = kinds or [None] * len(names)
        self.buckets = layout(strategy, names, self._sizes, kinds, group.size, collectives.BUCKET_BYTES // 4)
        self.segments: list[list[Segment]] = [bucket.segments(group.rank, self._sizes) for bucket in self.buckets]

    def take(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns this rank's part of each bucket, flat, of tensors that all ranks hold whole."""
        rank = self.group.rank
        return [self._flat(b, tensors)[b.bounds[rank] : b.bounds[rank + 1]] for b in self.buckets]

    def reduce(self, tensors: Sequence[tf.Tensor], name: str, wire_dtype: tf.DType) -> list[tf.Tensor]:
        """Sums tensors over the ranks, each part where it belongs.

        Args:
            tensors: one of each shape, of any floating dtypes, different on each rank.
            name: of the collectives; unique in the graph and equal on every rank.
            wire_dtype: float32 or float16.

        Returns:
            This rank's part of each bucket, flat, in fp32.
        """
        return [
            collectives.reduce_scatter_sum(
                self.group, self._flat(bucket, tensors, wire_dtype), bucket.bounds, f"{name}.{number}"
            )
            for number, bucket in enumerate(self.buckets)
        ]

    def gather(self, parts: Sequence[tf.Tensor], name: str) -> Iterator[tuple[int, tf.Tensor]]:
        """Collects tensors from the parts of all ranks.

        Args:
            parts: this rank's part of each bucket.
            name: of the collectives; unique in the graph and equal on every rank.

        Yields:
            Index and value of each tensor, bucket by bucket.
        """
        for number, (bucket, part) in enumerate(zip(self.buckets, parts, strict=True)):
            flat = collectives.all_gather_rows(self.group, collectives.as_sendable(part), f"{name}.{number}")
            flat = tf.bitcast(tf.ensure_shape(flat, [bucket.bounds[-1]]), part.dtype)
            for tensor, offset in zip(bucket.tensors, bucket.offsets, strict=True):
                yield tensor, tf.reshape(flat[offset : offset + self._sizes[tensor]], self._shapes[tensor])

    def place(self, tensor: int) -> Iterator[tuple[int, slice, slice]]:
        """Yields where this rank's elements of a tensor are: bucket, stretch of its part, stretch of the tensor."""
        for number, bucket in enumerate(self.buckets):
            for index, part, stretch in bucket.owned(self.group.rank, self._sizes):
                if index == tensor:
                    yield number, part, stretch

    def _flat(self, bucket: Bucket, tensors, dtype=None) -> tf.Tensor:
        """Returns a bucket of whole tensors, with zeros as padding."""
        pieces, position = [], 0
        dtype = dtype or tensors[0].dtype
        for tensor, offset in zip(bucket.tensors, bucket.offsets, strict=True):
            if offset > position:
                pieces.append(tf.zeros([offset - position], dtype))
            pieces.append(tf.reshape(tf.cast(tensors[tensor], dtype), [-1]))
            position = offset + self._sizes[tensor]
        if bucket.bounds[-1] > position:
            pieces.append(tf.zeros([bucket.bounds[-1] - position], dtype))
        return tf.concat(pieces, axis=0)
