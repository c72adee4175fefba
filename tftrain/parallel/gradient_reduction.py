"""Sums gradients over the data parallel ranks, and collects updated weights from the ranks that own them.

- Whole: all ranks receive the sum of every tensor (an all-reduce, in buckets).
- Split: each rank receives the shards that it owns (ZeRO, Rajbhandari et al., arXiv 1910.02054). A reduce-scatter sums
  each bucket and sends each shard to its owner. When the owners have updated their shards, an all-gather sends the
  weights to all ranks. Both together send as many bytes as the all-reduce. With 16-bit weights, the all-gather sends
  half as many.
- Sparse rows: the looked-up rows of an embedding travel as rows, and every rank adds them up.

Tensor parallel ranks hold some variables whole. Their gradients are equal but for rounding: on a GPU some sums change
from call to call, and each data group adds in an order of its own. So that these replicas never differ, the sums of the
first tensor parallel rank count on all of them. Under sequence parallelism, most of these gradients are sums over the
ranks instead, which all groups add in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from tftrain.config.parallel import BUCKET_BYTES
from tftrain.parallel import buckets, collectives
from tftrain.parallel.mesh import Group
from tftrain.parallel.sparse_rows import SparseRows, add_up
from tftrain.parallel.tensorflow_transport import TensorFlowTransport


class Partition(Protocol):
    """Which rank owns which shard of the gradients, see `tftrain.optim.state_split.StateSplit`."""

    slices: Sequence[Sequence]

    def reduce_all(self, tensors: Sequence[tf.Tensor], name: str, wire_dtype: tf.DType) -> list[tf.Tensor]:
        """Sums tensors over the ranks; returns this rank's shard of each bucket."""


@dataclass(frozen=True)
class GradientReduction:
    """Sums the gradients of a run over the data parallel ranks."""

    group: Group
    wire: tf.DType  # float32, or float16 to halve the bytes that travel
    split: Partition | None  # None if every rank receives all gradients
    # Whether gradients of each micro-batch are summed, so that a rank accumulates its shard (ZeRO-2, with `split`).
    each_micro_batch: bool
    tensor: Group
    replicated: Sequence[bool]  # for each store of the optimizer's state, whether every tensor parallel rank holds it
    summed: Sequence[bool]  # whether its gradient is a sum over the tensor parallel ranks; then they all hold it
    # Whether the gradients of several ranks are summed by the program that computes them, see `sum_in_program`.
    in_program: bool = False

    def sum(self, gradients: Sequence[tf.Tensor], first_is_early: bool = False) -> list[tf.Tensor]:
        """Returns the sums over ranks: whole tensors; with a split, this rank's flat shard of each bucket.

        There is a gradient of every variable, different on each rank, of any floating dtype. Backward ends with the
        embeddings; but the token embedding's is early if it is the gradient of the output layer alone.
        """
        if self.split:
            return self.split.reduce_all(gradients, "gradients", self.wire)
        order = list(range(len(gradients)))[::-1]
        if first_is_early:
            order = [0, *order[:-1]]
        summed = all_reduce_sum(self.group, [gradients[index] for index in order], "gradients", self.wire)
        return [each for _, each in sorted(zip(order, summed, strict=True), key=lambda pair: pair[0])]

    def sum_in_program(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over ranks, inside a function that XLA compiles for GPUs: bf16 as it is, others in fp32.

        The order of sums and computations is XLA's, so that a sum travels while backward continues.
        """
        sums = []
        for number, each in list(enumerate(gradients))[::-1]:
            wire = each if each.dtype == tf.bfloat16 else tf.cast(each, self.wire)
            sums.append(TensorFlowTransport(self.group, f"{self.group.name}.gradients.{number}").sum_in_program(wire))
        return sums[::-1]

    def add_rows(self, gradient: tf.Tensor, rows: SparseRows) -> tf.Tensor:
        """Adds the looked-up rows of all ranks to the gradient of their table: fp32, already summed over ranks."""
        values = tf.cast(rows.values, self.wire) if self.group.size > 1 else rows.values
        ids = collectives.all_gather_rows(self.group, rows.ids, "row_ids")
        values = tf.cast(collectives.all_gather_rows(self.group, values, "rows"), tf.float32)
        sums = add_up(SparseRows(ids, values))
        return tf.tensor_scatter_nd_add(gradient, sums.ids[:, tf.newaxis], sums.values)

    def make_replicas_equal(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients, with equal bits on all tensor parallel ranks that hold the same store.

        The gradients are of any floating dtypes, one for each store of the optimizer's state, summed over the data
        parallel ranks. Those that travel are fp32 afterwards.
        """
        if self.tensor.size == 1:
            return list(gradients)
        sums = [index for index, is_sum in enumerate(self.summed) if is_sum]
        equal = [index for index, is_whole in enumerate(self.replicated) if is_whole and not self.summed[index]]
        gradients = self._in_buckets(gradients, equal, collectives.broadcast, "replicated_gradients")
        return self._in_buckets(gradients, sums, collectives.sum_in_rank_order, "summed_gradients")

    def _in_buckets(
        self, gradients: Sequence[tf.Tensor], indices: Sequence[int], collective: Callable[..., tf.Tensor], name: str
    ) -> list[tf.Tensor]:
        """Returns the gradients, those at `indices` as a collective of the tensor parallel ranks returns them."""
        gradients = list(gradients)
        sizes = [gradients[index].shape.num_elements() for index in indices]
        for number, bucket in enumerate(buckets.pack([4 * size for size in sizes], BUCKET_BYTES)):
            sent = [tf.cast(gradients[indices[item]], tf.float32) for item in bucket]
            flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in sent], axis=0)
            flat = collective(self.tensor, flat, f"{name}.{number}")
            for item, piece in zip(bucket, tf.split(flat, [sizes[item] for item in bucket]), strict=True):
                gradients[indices[item]] = tf.reshape(piece, gradients[indices[item]].shape)
        return gradients


def all_reduce_sum(
    group: Group, tensors: Sequence[tf.Tensor], name: str, wire_dtype: tf.DType = tf.float32
) -> list[tf.Tensor]:
    """Sums each tensor over the ranks of a group.

    Args:
        tensors: any shapes and floating dtypes, the same on every rank, in the order in which they become ready.
        wire_dtype: float32, or float16 to halve the bytes that travel. Horovod sends no bfloat16.

    Returns:
        The sums, in wire_dtype; on one rank, the tensors as they are.
    """
    if group.size == 1:
        return list(tensors)
    summed: list[tf.Tensor] = []
    bytes_of_each = [4 * tensor.shape.num_elements() for tensor in tensors]
    for number, bucket in enumerate(buckets.pack(bytes_of_each, BUCKET_BYTES)):
        sent = [tf.cast(tensors[index], wire_dtype) for index in bucket]
        if wire_dtype == tf.float16 and not collectives.has_nccl():
            summed += _sum_in_fp32(group, sent, f"{name}.{number}")
        else:
            summed += collectives.grouped_all_reduce(group, sent, f"{name}.{number}")
    return summed


def _sum_in_fp32(group: Group, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
    """Sums fp16 tensors: Gloo adds fp16 slowly, so one rank adds up each element in fp32. As many bytes are sent."""
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
    length = flat.shape[0]
    bounds = [rank * length // group.size for rank in range(group.size + 1)]
    part = collectives.reduce_scatter_sum(group, flat, bounds, f"{name}.parts")
    whole = tf.ensure_shape(collectives.all_gather_rows(group, tf.cast(part, flat.dtype), f"{name}.sums"), [length])
    pieces = tf.split(whole, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
