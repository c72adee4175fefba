"""Sums gradients over the data parallel ranks, and collects updated weights from the ranks that own them.

- Whole: all ranks receive the sum of every tensor (an all-reduce, in buckets).
- Split: each rank receives the parts that it owns (ZeRO, Rajbhandari et al., arXiv 1910.02054). A reduce-scatter sums
  each bucket and sends each part to its owner. When the owners have updated their parts, an all-gather sends the
  weights to all ranks. Both together send as many bytes as the all-reduce. With 16-bit weights, the all-gather sends
  half as many.
- Sparse rows: the looked-up rows of an embedding travel as rows, and every rank adds them up.

Tensor parallel ranks hold some variables whole. Their gradients are equal but for rounding: on a GPU some sums change
from call to call, and each data group adds in an order of its own. So that these replicas never differ, the sums of the
first tensor parallel rank count on all of them. Under sequence parallelism, most of these gradients are sums over the
ranks instead, which all groups add in the same order.
"""

from collections.abc import Hashable, Iterator, Sequence

import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.layout import BUCKET_BYTES, Bucket, Segment, layout, pack
from tftrain.parallel.mesh import Group
from tftrain.parallel.sparse_rows import SparseRows, add_up


class GradientReduction:
    """Sums the gradients of a run over the data parallel ranks.

    Attributes:
        split: the owner of each part of the gradients; None if every rank receives all gradients.
        each_micro_batch: whether the gradients of every micro-batch are summed at once, so that a rank accumulates only
            its own part (ZeRO-2).
    """

    def __init__(
        self,
        group: Group,
        wire_dtype: tf.DType,
        split: "StateSplit | None",
        each_micro_batch: bool,
        tensor: Group,
        replicated: Sequence[bool],
        summed: Sequence[bool],
    ):
        """Prepares the reduction.

        Args:
            group: the data parallel ranks.
            wire_dtype: float32, or float16 to halve the bytes that travel.
            split: see the attributes.
            each_micro_batch: has an effect only with `split`.
            tensor: the tensor parallel ranks.
            replicated: for each store of the optimizer's state, whether every tensor parallel rank holds it.
            summed: for each store, whether its gradient is a sum over the tensor parallel ranks; then they all hold it.
        """
        self.split, self.each_micro_batch = split, each_micro_batch and split is not None
        self._group, self._wire, self._tensor = group, wire_dtype, tensor
        self._replicated, self._summed = replicated, summed

    def buffer_shapes(self, variables: Sequence[tf.Variable]) -> list[tf.TensorShape]:
        """Returns the shapes of the buffers in which micro-batches accumulate the gradients of these variables."""
        if self.each_micro_batch:
            return [tf.TensorShape([sum(part.size for part in parts)]) for parts in self.split.segments]
        return [variable.shape for variable in variables]

    def sum(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over ranks: whole tensors; with a split, this rank's flat part of each bucket.

        Args:
            gradients: of every variable, different on each rank, of any floating dtypes.
        """
        if self.split:
            return self.split.reduce(gradients, "gradients", self._wire)
        # Backward ends with the embeddings: in reverse, the first bucket is ready first.
        return all_reduce_sum(self._group, gradients[::-1], "gradients", self._wire)[::-1]

    def add_rows(self, gradient: tf.Tensor, rows: SparseRows) -> tf.Tensor:
        """Adds the looked-up rows of all ranks to the gradient of their table.

        Args:
            gradient: fp32, of the whole table, already summed over ranks.
            rows: of this rank.
        """
        values = tf.cast(rows.values, self._wire) if self._group.size > 1 else rows.values
        ids = collectives.all_gather_rows(self._group, rows.ids, "row_ids")
        values = tf.cast(collectives.all_gather_rows(self._group, values, "rows"), tf.float32)
        sums = add_up(SparseRows(ids, values))
        return tf.tensor_scatter_nd_add(gradient, sums.ids[:, tf.newaxis], sums.values)

    def make_replicas_equal(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients, with equal bits on all tensor parallel ranks that hold the same store.

        Args:
            gradients: of any floating dtypes, one for each store of the optimizer's state, summed over the data
                parallel ranks. Those that travel are fp32 afterwards.
        """
        if self._tensor.size == 1:
            return list(gradients)
        of_each = list(zip(self._replicated, self._summed, strict=True))
        equal = [place for place, (is_whole, is_sum) in enumerate(of_each) if is_whole and not is_sum]
        sums = [place for place, (_, is_sum) in enumerate(of_each) if is_sum]
        gradients = self._in_buckets(gradients, equal, collectives.broadcast, "replicated_gradients")
        return self._in_buckets(gradients, sums, collectives.sum_in_rank_order, "summed_gradients")

    def _in_buckets(self, gradients, places, collective, name):
        """Returns the gradients, those at `places` as a collective of the tensor parallel ranks returns them."""
        gradients = list(gradients)
        sizes = [gradients[place].shape.num_elements() for place in places]
        for number, bucket in enumerate(pack([4 * size for size in sizes], BUCKET_BYTES)):
            sent = [tf.cast(gradients[places[item]], tf.float32) for item in bucket]
            flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in sent], axis=0)
            flat = collective(self._tensor, flat, f"{name}.{number}")
            for item, piece in zip(bucket, tf.split(flat, [sizes[item] for item in bucket]), strict=True):
                gradients[places[item]] = tf.reshape(piece, gradients[places[item]].shape)
        return gradients


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
        if wire_dtype == tf.float16 and not collectives.has_nccl():
            summed += _sum_in_fp32(group, sent, f"{name}.{index}")
        else:
            summed += collectives.grouped_all_reduce(group, sent, f"{name}.{index}")
    return summed


def _sum_in_fp32(group, tensors, name):
    """Sums fp16 tensors: Gloo adds fp16 slowly, so one rank adds up each element in fp32. As many bytes are sent."""
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
    length = flat.shape[0]
    bounds = [rank * length // group.size for rank in range(group.size + 1)]
    part = collectives.reduce_scatter_sum(group, flat, bounds, f"{name}.parts")
    whole = tf.ensure_shape(collectives.all_gather_rows(group, tf.cast(part, flat.dtype), f"{name}.sums"), [length])
    pieces = tf.split(whole, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


class StateSplit:
    """Converts between whole tensors and this rank's flat part of each bucket.

    Attributes:
        group: the ranks among which tensors are divided.
        buckets: the tensors of each bucket, and the bounds of each rank's part.
        segments: the segments of this rank's part of each bucket.
    """

    def __init__(
        self,
        group: Group,
        names: Sequence[str],
        shapes: Sequence[tf.TensorShape],
        strategy: str,
        kinds: Sequence[Hashable] | None = None,
        loads: Sequence[float] | None = None,
    ):
        """Divides tensors of these names and shapes, which are the same on all ranks of the group, see `layout`."""
        self.group, self._shapes = group, [tf.TensorShape(shape) for shape in shapes]
        self._sizes = [shape.num_elements() for shape in self._shapes]
        kinds = kinds or [None] * len(names)
        self.buckets = layout(strategy, names, self._sizes, kinds, group.size, BUCKET_BYTES // 4, loads)
        self.segments: list[list[Segment]] = [bucket.segments(group.rank, self._sizes) for bucket in self.buckets]

    def take(self, tensors: Sequence[tf.Tensor]) -> Iterator[tf.Tensor]:
        """Yields this rank's part of each bucket, flat.

        Args:
            tensors: whole, equal on all ranks. Only those that this rank owns elements of are accessed, one bucket
                after the other.
        """
        for bucket, segments in zip(self.buckets, self.segments, strict=True):
            stretches = {tensor: stretch for tensor, _, stretch in bucket.owned(self.group.rank, self._sizes)}
            owned = {tensor: tf.reshape(tensors[tensor], [-1])[stretch] for tensor, stretch in stretches.items()}
            dtype = next(iter(owned.values())).dtype if owned else tf.float32
            yield tf.concat(
                [tf.zeros([size], dtype) if tensor is None else owned[tensor] for tensor, size in segments], axis=0
            )

    def reduce(self, tensors: Sequence[tf.Tensor], name: str, wire_dtype: tf.DType) -> list[tf.Tensor]:
        """Sums tensors over the ranks; each rank receives the sum of its own part.

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
