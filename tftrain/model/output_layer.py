"""The output layer, which may be the token embedding again, and its cross-entropy, in chunks of rows.

The logits of all positions would be by far the largest tensor: 2,048 tokens and 250,880 words are 2 GB in fp32. Here
forward and backward compute the logits of some rows at a time. For backward, at most one number of each row is saved:
the logarithm of the sum of its exponentials. Backward computes the logits again, which is one more matrix product.
Logits that are one chunk, or their gradients, are saved instead, and no product is computed twice: they are no larger
than the table's gradient, of which a sum over chunks needs a second one.

If tensor parallel ranks divide the vocabulary, each rank computes the logits of its words. The ranks exchange four
numbers for each row (Shoeybi et al., arXiv 1909.08053, section 3), after the last chunk.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tftrain.architecture.architecture import GPU_UNIT, rows_of_chunk
from tftrain.host import devices
from tftrain.ops.tensors import in_turn, wide_dtype
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group


def output_logits(x: tf.Tensor, table: tf.Tensor, bias: tf.Tensor | None = None) -> tf.Tensor:
    """Returns x table' + bias in the wide dtype, [n, words of this rank], for x [n, H]; see `output_cross_entropy`."""
    logits = tf.matmul(x, table, transpose_b=True)
    logits = logits if bias is None else tf.nn.bias_add(logits, bias)
    return tf.cast(logits, wide_dtype(x.dtype))


def output_cross_entropy(
    x: tf.Tensor,
    table: tf.Tensor,
    labels: tf.Tensor,
    first: int,
    group: Group,
    name: str,
    rows: int | None = None,
    bias: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compares softmax(x table' + bias) with labels.

    Args:
        x: [n, H], equal on every rank of the group.
        table: [words of this rank, H], of x's dtype.
        labels: int32, classes of the whole vocabulary, in any shape of n elements.
        first: class of this rank's first row of `table`.
        group: the ranks that divide the vocabulary.
        name: name of the layer, for the collectives.
        rows: of a chunk; by default those of `rows_of_chunk`.
        bias: [words of this rank], of x's dtype; None: no bias.

    Returns:
        Two tensors in the shape of the labels, fp32 (float64 for float64), equal on every rank. The first is the
        cross-entropy in nats. It has gradients for x, table and bias: the one of x is this rank's part of a sum over
        the group. The second is 1 where the label is the best class, else 0; of classes with equal logits, the lowest
        is the best.
    """
    cross_entropy = _cross_entropy if group.size == 1 else _cross_entropy_over_ranks
    flat = tf.reshape(labels, [-1])

    @tf.custom_gradient
    def compared(x: tf.Tensor, table: tf.Tensor, *biases: tf.Tensor):
        return cross_entropy(_Chunks(x, table, biases, flat - first, rows), flat, first, group, name)

    losses = compared(x, table, *([] if bias is None else [bias]))
    return tuple(tf.reshape(each, tf.shape(labels)) for each in losses)


def _cross_entropy(chunks: "_Chunks", labels: tf.Tensor, _first: int, _group: Group, _name: str):
    """Returns the results of `output_cross_entropy` and their gradient where one rank has all words."""
    if chunks.is_one:  # The gradient takes the place of the logits.
        entropy, winner, saved = _compare(chunks.logits, chunks.labels)
    else:
        entropy, winner = chunks.map(lambda *chunk: _compare(*chunk)[:2], (chunks.wide, tf.int64))

    def gradient(upstream: tf.Tensor, _correct: tf.Tensor):
        if chunks.is_one:
            return chunks.products(saved * upstream[:, tf.newaxis], chunks.x)
        return chunks.gradients(_dlogits, upstream)

    return (entropy, tf.cast(winner == tf.cast(labels, tf.int64), chunks.wide)), gradient


def _compare(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the cross-entropies of logits [n, words] with labels [n], the best classes and the logits' gradient.

    On a CPU, a softmax and a subtraction from one number of each row take a third of the time of TensorFlow's op.
    """
    winner = tf.argmax(logits, axis=-1)
    if devices.has_gpu():
        entropy, gradient = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)
        return entropy, winner, gradient
    with tf.name_scope("cross_entropy"):
        probabilities = tf.nn.softmax(logits)
        best, own = (tf.gather(logits, classes, batch_dims=1) for classes in (winner, labels))
        entropy = best - own - tf.math.log(tf.gather(probabilities, winner, batch_dims=1))
        with tf.control_dependencies([entropy]):  # The gradient takes the place of the probabilities.
            return entropy, winner, _less_one(probabilities, labels)


def _dlogits(logits: tf.Tensor, labels: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """Returns the logits' gradient alone, for gradients of the cross-entropies [n]."""
    if devices.has_gpu():
        return _compare(logits, labels)[2] * upstream[:, tf.newaxis]
    with tf.name_scope("cross_entropy"):
        return _less_one(tf.nn.softmax(logits), labels) * upstream[:, tf.newaxis]


def _less_one(probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns probabilities [n, words] less 1 at the label of each row, in place if nothing else reads them."""
    indices = tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=-1)
    return tf.tensor_scatter_nd_sub(probabilities, indices, tf.ones_like(labels, probabilities.dtype))


def _cross_entropy_over_ranks(chunks: "_Chunks", labels: tf.Tensor, first: int, group: Group, name: str):
    """Returns the results of `output_cross_entropy` and their gradient where ranks divide the words."""
    words, wide = chunks.words, chunks.wide

    def row_sums(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns each row's largest logit, the lowest class that has it, sum of exp(logit - best), label's logit."""
        best = tf.reduce_max(logits, axis=-1)
        winner = tf.argmax(logits, axis=-1)  # int64: a GPU compares int32 on the host
        is_local = (labels >= 0) & (labels < words)
        label = tf.gather(logits, tf.where(is_local, labels, 0), axis=1, batch_dims=1)
        powers = tf.reduce_sum(tf.exp(logits - best[:, tf.newaxis]), axis=-1)
        return best, winner, powers, tf.where(is_local, label, tf.zeros([], wide))

    def dlogits(logits: tf.Tensor, labels: tf.Tensor, total: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        probabilities = tf.exp(logits - total[:, tf.newaxis])
        chosen = tf.one_hot(labels, words, dtype=wide)  # zeros for words of other ranks
        return (probabilities - chosen) * upstream[:, tf.newaxis]

    own_best, winner, powers, label = chunks.map(row_sums, (wide, tf.int64, wide, wide))
    best = collectives.all_reduce(group, own_best, f"{name}/best", "max")
    lower_wins = tf.cast((own_best == best) & (first + winner < tf.cast(labels, tf.int64)), wide)
    local = tf.stack([powers * tf.exp(own_best - best), label, lower_wins])
    powers, label, lower_wins = tf.unstack(collectives.all_reduce(group, local, f"{name}/sums"))
    total = best + tf.math.log(powers)  # logarithm of the sum of all exponentials

    def gradient(upstream: tf.Tensor, _correct: tf.Tensor):
        return chunks.gradients(dlogits, total, upstream)

    return (total - label, tf.cast((label == best) & (lower_wins == 0), wide)), gradient


class _Chunks:
    """The rows of x and their labels, in chunks of equal size; the last one is filled up with zeros.

    Attributes:
        words: of this rank.
        wide: dtype of the logits.
        is_one: whether one chunk has all rows; then `logits` are those of x.
    """

    def __init__(
        self, x: tf.Tensor, table: tf.Tensor, biases: Sequence[tf.Tensor], labels: tf.Tensor, rows: int | None
    ):
        """Divides n rows; labels count from the first row of `table` and may be outside of it."""
        self.words, self.wide, self._layer = table.shape[0], wide_dtype(x.dtype), [table, *biases]
        self.total = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
        rows = rows or rows_of_chunk(x.shape[0], self.words, table.shape[1], devices.has_gpu())
        self.rows = min(rows, x.shape[0] or rows)
        self.count = -(-self.total // self.rows)
        self.fill = self.count * self.rows - self.total
        self.x, self.labels = self._padded(x), self._padded(labels)
        self.is_one = isinstance(self.count, int) and self.count == 1
        # XLA pads operands of a product in 16 bits to a multiple of GPU_UNIT: the table, again in each run of the loop.
        self._padding = 0 if self.is_one or x.dtype.size > 2 or not devices.has_gpu() else -self.words % GPU_UNIT
        if self._padding:
            self._layer = [tf.pad(each, [[0, self._padding], [0, 0]][: each.shape.rank]) for each in self._layer]
        self.logits = self._logits_of(self.x) if self.is_one else None

    def map(self, function: Callable, dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
        """Returns what function(logits [rows, words], labels [rows]) returns for each row, tensors [n] of `dtypes`."""
        if self.is_one:
            return list(function(self.logits, self.labels))

        def body(index: int | tf.Tensor, *arrays: tf.TensorArray):
            values_of_chunk = function(self._logits(index), self._chunk(self.labels, index))
            return [array.write(index, value) for array, value in zip(arrays, values_of_chunk, strict=True)]

        arrays = [tf.TensorArray(dtype, self.count, element_shape=[self.rows]) for dtype in dtypes]
        return [tf.reshape(array.stack(), [-1])[: self.total] for array in in_turn(body, arrays, self.count)]

    def gradients(self, dlogits: Callable, *numbers: tf.Tensor) -> list[tf.Tensor]:
        """Returns the gradients of x, table and biases.

        Args:
            dlogits: a function of logits, labels and the numbers of a chunk's rows; returns the logits' gradient.
            numbers: of each row, [n].
        """
        if self.is_one:
            return self.products(dlogits(self.logits, self.labels, *numbers), self.x)
        numbers = [self._padded(each) for each in numbers]

        def part(index: int | tf.Tensor):
            labels, of_chunk = self._chunk(self.labels, index), (self._chunk(each, index) for each in numbers)
            return self.products(dlogits(self._logits(index), labels, *of_chunk), self._chunk(self.x, index))

        def body(index: int | tf.Tensor, dx: tf.Tensor, *sums: tf.Tensor):
            dx_chunk, *gradients_of_chunk = part(index)
            sums = [total + tf.cast(each, self.wide) for total, each in zip(sums, gradients_of_chunk, strict=True)]
            return dx.write(index, dx_chunk), *sums

        dx_chunk, *gradients_of_chunk = part(0)
        # The sums begin with the first chunk: zeros would be one more tensor as large as the table, and stay.
        dtype, width = self.x.dtype, self.x.shape[1]
        arrays = tf.TensorArray(dtype, self.count, element_shape=[self.rows, width]).write(0, dx_chunk)
        initial = arrays, *(tf.cast(each, self.wide) for each in gradients_of_chunk)
        dx, *sums = in_turn(body, initial, self.count, start=1)
        dx = tf.reshape(dx.stack(), [-1, width])[: self.total]
        return [dx, *(tf.cast(each, dtype) for each in sums)]

    def products(self, dlogits: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
        """Returns the parts of the gradients of x, table and biases that come from some rows."""
        narrow, (table, *biases) = tf.cast(dlogits, x.dtype), self._layer
        dbiases = [tf.cast(tf.raw_ops.BiasAddGrad(out_backprop=dlogits), x.dtype) for _ in biases]
        if not self._padding:
            return [tf.matmul(narrow, table), tf.matmul(narrow, x, transpose_a=True), *dbiases]
        narrow = tf.pad(narrow, [[0, 0], [0, self._padding]])
        return [tf.matmul(narrow, table), tf.matmul(narrow, x, transpose_a=True)[: self.words], *dbiases]

    def _logits(self, index: int | tf.Tensor) -> tf.Tensor:
        return self._logits_of(self._chunk(self.x, index))

    def _logits_of(self, x: tf.Tensor) -> tf.Tensor:
        logits = output_logits(x, *self._layer)
        return logits[:, : self.words] if self._padding else logits

    def _padded(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of n rows with zeros at the end, up to whole chunks."""
        if isinstance(self.fill, int) and self.fill == 0:
            return tensor
        return tf.pad(tensor, [[0, self.fill], *[[0, 0]] * (tensor.shape.rank - 1)])

    def _chunk(self, tensor: tf.Tensor, index: int | tf.Tensor) -> tf.Tensor:
        """Returns the rows of a padded tensor that belong to a chunk."""
        begin = [index * self.rows, *[0] * (tensor.shape.rank - 1)]
        return tf.slice(tensor, begin, [self.rows, *tensor.shape[1:]])
