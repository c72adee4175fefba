"""The output layer of a decoder and its cross-entropy, in chunks of rows.

The logits of all positions would be by far the largest tensor: 2,048 tokens and 250,880 words are 2 GB in fp32. Here
forward and backward compute the logits of some rows at a time. For backward, only one number of each row is saved: the
logarithm of the sum of its exponentials. Backward computes the logits again, which is one more matrix product.

If tensor parallel ranks divide the vocabulary, each rank computes the logits of its words. The ranks exchange four
numbers for each row (Shoeybi et al., arXiv 1909.08053, section 3), after the last chunk.
"""

from typing import NamedTuple

import tensorflow as tf

from tftrain.ops.dtypes import wide_dtype
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group

CHUNK_LOGITS = 2**23  # most logits of a chunk: 32 MB in fp32
LEAST_ROWS = 32  # of a chunk, so that the products stay efficient


class RowSums(NamedTuple):
    """What is known of each row after one pass over its logits, each [n].

    Attributes:
        best: the largest logit of this rank's words, in the wide dtype.
        winner: int32, the lowest class that has it.
        powers: sum of exp(logit - best).
        label: logit of the label; 0 if the word is on another rank.
    """

    best: tf.Tensor
    winner: tf.Tensor
    powers: tf.Tensor
    label: tf.Tensor


def tied_cross_entropy(
    x: tf.Tensor, table: tf.Tensor, labels: tf.Tensor, first: int, group: Group, place: str, rows: int | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compares softmax(x table') with labels.

    Args:
        x: [n, H], equal on every rank of the group.
        table: [words of this rank, H], of x's dtype.
        labels: int32 [n], classes of the whole vocabulary.
        first: class of this rank's first row of `table`.
        group: the ranks that divide the vocabulary.
        place: name of the layer, for the collectives.
        rows: of a chunk; by default as many as CHUNK_LOGITS permits.

    Returns:
        Two tensors [n], fp32 (float64 for float64), equal on every rank. The first is the cross-entropy in nats. It has
        gradients for x and table: the one of x is this rank's part of a sum over the group. The second is 1 where the
        label is the best class, else 0; of classes with equal logits, the lowest is the best.
    """
    words, wide = table.shape[0], wide_dtype(x.dtype)
    rows = rows or max(LEAST_ROWS, CHUNK_LOGITS // words)

    @tf.custom_gradient
    def compare(x, table):
        sums = _Chunks(x, table, labels - first, rows).forward()
        best = collectives.all_reduce(group, sums.best, f"{place}/best", "max")
        winner, lower_wins = first + sums.winner, tf.zeros_like(best)
        if group.size > 1:
            lower_wins = tf.cast((sums.best == best) & (winner < labels), wide)
        local = tf.stack([sums.powers * tf.exp(sums.best - best), sums.label, lower_wins])
        powers, label, lower_wins = tf.unstack(collectives.all_reduce(group, local, f"{place}/sums"))
        total = best + tf.math.log(powers)  # logarithm of the sum of all exponentials
        is_best = (label == best) & (lower_wins == 0) if group.size > 1 else winner == labels

        def gradient(upstream, _correct):
            return _Chunks(x, table, labels - first, rows).backward(total, upstream)

        return (total - label, tf.cast(is_best, wide)), gradient

    return compare(x, table)


class _Chunks:
    """The rows of x and their labels, in chunks of equal size; the last one is filled up with zeros."""

    def __init__(self, x: tf.Tensor, table: tf.Tensor, labels: tf.Tensor, rows: int):
        """Divides n rows; labels count from the first row of `table` and may be outside of it."""
        self.table, self.words, self.wide = table, table.shape[0], wide_dtype(x.dtype)
        self.total = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
        self.rows = rows if x.shape[0] is None else min(rows, x.shape[0])
        self.count = -(-self.total // self.rows)
        self.fill = self.count * self.rows - self.total
        self.x, self.labels = self.padded(x), self.padded(labels)

    def padded(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of n rows with zeros behind, up to whole chunks."""
        if isinstance(self.fill, int) and self.fill == 0:
            return tensor
        return tf.pad(tensor, [[0, self.fill], *[[0, 0]] * (tensor.shape.rank - 1)])

    def chunk(self, tensor: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        """Returns the rows of a padded tensor that belong to a chunk."""
        begin = [index * self.rows, *[0] * (tensor.shape.rank - 1)]
        return tf.slice(tensor, begin, [self.rows, *tensor.shape[1:]])

    def logits(self, index: tf.Tensor) -> tf.Tensor:
        """Returns the logits of a chunk, [rows, words] in the wide dtype."""
        return tf.cast(tf.matmul(self.chunk(self.x, index), self.table, transpose_b=True), self.wide)

    def loop(self, body, initial):
        """Runs body(index, *values) for each chunk, one after the other, and returns the last values."""

        def step(index, *values):
            return (index + 1, *body(index, *values))

        count = self.count if isinstance(self.count, int) else None
        _, *values = tf.while_loop(
            lambda index, *_: index < self.count,
            step,
            (tf.constant(0), *initial),
            maximum_iterations=count,
            parallel_iterations=1,
        )
        return values

    def forward(self) -> RowSums:
        """Returns the sums of each row."""

        def body(index, *arrays):
            logits, labels = self.logits(index), self.chunk(self.labels, index)
            best = tf.reduce_max(logits, axis=-1)
            found = RowSums(
                best,
                tf.argmax(logits, axis=-1, output_type=tf.int32),
                tf.reduce_sum(tf.exp(logits - best[:, tf.newaxis]), axis=-1),
                self.at_labels(logits, labels),
            )
            return [array.write(index, value) for array, value in zip(arrays, found, strict=True)]

        dtypes = RowSums(self.wide, tf.int32, self.wide, self.wide)
        arrays = self.loop(body, [tf.TensorArray(dtype, self.count, element_shape=[self.rows]) for dtype in dtypes])
        return RowSums(*(tf.reshape(array.stack(), [-1])[: self.total] for array in arrays))

    def backward(self, total: tf.Tensor, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the gradients of x and table, given log(sum(exp(logits))) and the gradient of each entropy, [n]."""
        dtype, width = self.table.dtype, self.table.shape[1]
        total, upstream = self.padded(total), self.padded(upstream)

        def body(index, dx, dtable):
            labels = self.chunk(self.labels, index)
            probabilities = tf.exp(self.logits(index) - self.chunk(total, index)[:, tf.newaxis])
            chosen = tf.one_hot(labels, self.words, dtype=self.wide)  # zeros for words of other ranks
            dlogits = (probabilities - chosen) * self.chunk(upstream, index)[:, tf.newaxis]
            dlogits = tf.cast(dlogits, dtype)
            dtable += tf.cast(tf.matmul(dlogits, self.chunk(self.x, index), transpose_a=True), self.wide)
            return dx.write(index, tf.matmul(dlogits, self.table)), dtable

        arrays = tf.TensorArray(dtype, self.count, element_shape=[self.rows, width])
        dx, dtable = self.loop(body, (arrays, tf.zeros(self.table.shape, self.wide)))
        return tf.reshape(dx.stack(), [-1, width])[: self.total], tf.cast(dtable, dtype)

    def at_labels(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns the logit of each row's label, [rows]; 0 for words of other ranks."""
        is_local = (labels >= 0) & (labels < self.words)
        picked = tf.gather(logits, tf.where(is_local, labels, 0), axis=1, batch_dims=1)
        return tf.where(is_local, picked, tf.zeros([], self.wide))
