"""Norms of tensors that are sharded: sums of squares, added over the ranks in one small vector.

Tensors are sharded in two ways. With a sharded state, each data parallel rank has a shard of every gradient and weight.
With tensor parallelism, each tensor parallel rank has a shard of some tensors and a full copy of the others. Such a
copy must count only once. Pipeline stages have different tensors: the norm of all gradients needs every stage, and the
norms of single tensors do not.
"""

from collections.abc import Sequence

import tensorflow as tf

from tftrain.optim.state import OptimizerState
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group, Mesh


class Norms:
    """Adds squares over the ranks that hold shards; `communicates` says whether other ranks do."""

    def __init__(self, mesh: Mesh, state: OptimizerState, names: Sequence[str]):
        """Determines which tensors count on this rank, given the names of the tensors of all stages."""
        self._split, self._slices = bool(state.split), state.slices
        # The ranks that together hold every tensor of the model once, and every tensor of this stage once.
        self._model = mesh.group(_kind(mesh, self._split, "model", "world"))
        self._stage = mesh.group(_kind(mesh, self._split, "tensor", "stage"))
        self._has_replicas = not self._split or mesh.replicas.size > 1
        self.communicates, self._adds_shards = self._model.size > 1, self._stage.size > 1
        self._indices, self._total = [names.index(name) for name in state.names], len(names)
        # A tensor that is whole on every tensor parallel rank counts on the first one.
        self._counts = [1.0 if each.shard.is_divided or mesh.tensor.rank == 0 else 0.0 for each in state.parameters]
        # So does a store, whose tensors are all sharded or all whole.
        self._store_counts = [0.0 if is_whole and mesh.tensor.rank else 1.0 for is_whole in state.replicated]

    def total(self, squares: tf.Tensor, marks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Adds squares of this rank's stores, fp32 [n], and further values, the marks, fp32 [m], in one vector.

        Returns:
            The sum of squares over all stores and ranks, fp32 scalar, and that of each mark over the ranks, fp32 [m].
        """
        if not self.communicates:
            return tf.reduce_sum(squares), marks
        own = tf.reduce_sum(squares * self._store_counts)
        both = self._over_ranks(self._model, tf.concat([[own], marks], axis=0), "squared_gradients")
        return both[0], both[1:]

    def not_finite(self, gradients: Sequence[tf.Tensor], squares: tf.Tensor) -> tf.Tensor:
        """Returns 1 for each tensor whose shard on this rank is not finite, else 0; fp32 [tensors of all stages].

        Gradients are of any floating dtype, one for each store; `squares` are their sums of squares, fp32 [stores].
        """
        marks = self._marks(gradients, squares)
        if self._indices == list(range(self._total)):
            return marks
        return tf.scatter_nd([[index] for index in self._indices], marks, [self._total])

    def _marks(self, gradients: Sequence[tf.Tensor], squares: tf.Tensor) -> tf.Tensor:
        if not self._split:
            return tf.cast(~tf.math.is_finite(squares), tf.float32)
        count = len(self._counts)

        def search():
            marks, ids = [], []
            for gradient, slices in zip(gradients, self._slices, strict=True):
                flat = tf.reshape(tf.cast(gradient, tf.float32), [-1])
                pieces = tf.split(flat, [item.size for item in slices])
                marks += [tf.cast(~tf.math.is_finite(tf.nn.l2_loss(piece)), tf.float32) for piece in pieces]
                ids += [count if item.tensor is None else item.tensor for item in slices]
            return tf.minimum(tf.math.unsorted_segment_sum(tf.stack(marks), ids, count + 1)[:count], 1.0)

        # A store holds many tensors. Finding the one that is not finite takes another pass, so it runs only if needed.
        return tf.cond(tf.math.is_finite(tf.reduce_sum(squares)), lambda: tf.zeros([count]), search)

    def of_tensors(
        self, tensors: Sequence[int | None], weights: tf.Tensor, updates: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns, for each slice, the sum of the squares of all slices of its tensor on all ranks, both fp32 [n].

        `tensors` has the tensor of each slice, None for padding. The squares given are of this rank's, fp32 [n].
        """
        if not self._adds_shards and len(set(tensors)) == len(tensors):
            return weights, updates
        count = len(self._counts)
        ids = [count if tensor is None else tensor for tensor in tensors]
        both = tf.math.unsorted_segment_sum(tf.stack([weights, updates], axis=1), ids, count + 1)  # [tensors + 1, 2]
        if self._adds_shards:
            both *= tf.constant([*self._counts, 0.0])[:, None]
            flat = self._over_ranks(self._stage, tf.reshape(both, [-1]), "squared_weights_and_updates")
            both = tf.reshape(flat, both.shape)
        mine = tf.gather(both, ids)
        return mine[:, 0], mine[:, 1]

    def _over_ranks(self, group: Group, squares: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over the ranks, with the same bits on every rank of the run that updates the same weights."""
        # Replicas add in groups of their own.
        add = collectives.sum_in_rank_order if self._has_replicas else collectives.all_reduce
        sums = add(group, squares, name)
        # A rank that owns only padding does not use the result.
        return collectives.prevent_pruning(sums) if self._split else sums


def _kind(mesh: Mesh, split: bool, whole: str, sharded: str) -> str:
    """Returns the kind of the group that adds: `whole`, or `sharded` if the data parallel ranks hold shards too."""
    if not split:
        return whole
    if mesh.split_size:
        return "holders"
    return "data" if mesh.group(whole).size == 1 else sharded
