"""The cross-entropy of finding each sample's partner among the texts of the whole global batch, in chunks.

A sample has k vectors of length H: an anchor a, its partner, and k - 2 further negatives. The partners and negatives of
all B samples are the candidates c_j; that of sample i itself is c_p(i). With weights w, which are 0 where a sample only
fills the batch, and a temperature t (Henderson et al., arXiv 1705.00652, section 4.4):

    s_ij = a_i c_j / t        e_i = log sum_j exp(s_ij)        loss = sum_i w_i (e_i - s_ip(i))

The sum omits candidates that are no negatives: those whose text is that of a_i or of its partner, and partners of an
anchor with the text of a_i. The softmax of row i has the entries exp(s_ij - e_i). Their differences from 1 at the
partner give the gradients:

    d loss / d a_i = w_i (sum_j exp(s_ij - e_i) c_j - c_p(i)) / t
    d loss / d c_j = (sum_i w_i exp(s_ij - e_i) a_i - sum_{i: p(i) = j} w_i a_i) / t

Each data parallel rank gathers the vectors of all ranks and computes the rows of its own anchors. Then it gathers the
e_i of all ranks and computes the columns of its own candidates. So the gradients of its own vectors are complete
without a sum over ranks. Scores exist for a tile of rows and columns at a time. Over the tiles of a row, the largest
score so far scales the sums (Milakov and Gimelshein, arXiv 1805.02867).
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tftrain.architecture.architecture import COMPARED_ROWS
from tftrain.ops.tensors import chunk_by_chunk, in_turn
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group


class Samples(NamedTuple):
    """This rank's samples of a global batch."""

    vectors: tf.Tensor  # fp32 or fp64 [n, k, H] with k > 1
    weights: tf.Tensor  # [n]
    labels: tf.Tensor | None = None  # how alike both texts are, [n]; or a teacher's scores, [n, k - 1]
    # Equal for equal texts, int64 [n, k]; 0: there is no such text. None: all texts differ.
    text_ids: tf.Tensor | None = None


class Vectors(NamedTuple):
    """The vectors of some samples; n (k - 1) candidates, those of a sample side by side."""

    anchors: tf.Tensor  # [n, H]
    candidates: tf.Tensor  # [n (k - 1), H]
    weights: tf.Tensor  # [n]
    anchor_ids: tf.Tensor  # int64 [n], equal for equal texts
    candidate_ids: tf.Tensor  # int64 [n (k - 1)]


class SampleLosses(NamedTuple):
    """The loss of this rank's samples in the global batch."""

    loss: tf.Tensor  # nats of each sample, without its weight, [n]
    is_nearest: tf.Tensor  # whether no other candidate is nearer than the partner, bool [n]
    gradient: tf.Tensor | None  # gradient of the weighted sum over the global batch, by this rank's vectors, [n, k, H]


class InBatchLoss:
    """The loss of a global batch whose vectors the data parallel ranks hold."""

    def __init__(self, temperature: float, jit: bool, name: str = "vectors"):
        """Traces nothing yet; `jit` says whether XLA compiles what is between two collectives, which have the name."""
        compiled = functools.partial(tf.function, jit_compile=jit, autograph=False)
        self._rows, self._columns = compiled(self._of_rows), compiled(self._of_columns)
        self._temperature, self._name, self._jit = temperature, name, jit

    def __call__(self, samples: Samples, group: Group, trains: bool = True) -> SampleLosses:
        """Compares this rank's samples with those of all ranks of the group; `trains`: whether there are gradients."""
        vectors, weights, _, ids = samples
        count, texts, width = vectors.shape
        first = group.rank * count
        if ids is None:
            ids = tf.reshape(1 + texts * first + tf.range(count * texts, dtype=tf.int64), [count, texts])
        flat = tf.reshape(vectors[:, 1:], [-1, width]), tf.cast(weights, vectors.dtype)
        own = Vectors(vectors[:, 0], *flat, ids[:, 0], tf.reshape(ids[:, 1:], [-1]))
        every = Vectors(*(gathered(group, each, f"{self._name}.{name}") for name, each in own._asdict().items()))
        partners = (texts - 1) * tf.range(first, first + count, dtype=tf.int64)
        loss, is_nearest, log_sums, *of_anchors = self._rows(own, every, partners, trains)
        if not trains:
            return SampleLosses(loss, is_nearest, None)
        log_sums = gathered(group, log_sums, f"{self._name}.log_sums")
        of_candidates = tf.reshape(self._columns(own, every, log_sums, partners), [count, texts - 1, width])
        return SampleLosses(loss, is_nearest, tf.concat([of_anchors[0][:, tf.newaxis], of_candidates], axis=1))

    def _of_rows(self, own: Vectors, every: Vectors, partners: tf.Tensor, trains: bool) -> list[tf.Tensor]:
        """Returns loss, whether the partner is the nearest, and log-sum-exp of own anchors, [n]; their gradients."""
        total, count = every.candidates.shape[0], every.candidates.shape[0] // every.weights.shape[0]
        indices, least = tf.range(total, dtype=tf.int64), own.anchors.dtype.min
        owners = tf.where(indices % count == 0, tf.repeat(every.anchor_ids, count), 0)  # anchors of partners
        is_missing = tf.repeat(every.weights <= 0, count) | (every.candidate_ids == 0)

        def chunk(anchors: tf.Tensor, weights: tf.Tensor, partners: tf.Tensor, ids: tf.Tensor) -> list[tf.Tensor]:
            ids, of_partners = ids[:, tf.newaxis], tf.gather(every.candidate_ids, partners)[:, tf.newaxis]

            def tile(columns: Sequence[tf.Tensor], is_new: tf.Tensor, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
                """Adds candidates to the highest score, its index, the sum of exponentials, and pulls."""
                candidates, candidate_ids, owners, is_missing, indices = columns
                most, nearest, exponentials, *pulls = state
                hidden = (candidate_ids == ids) | (candidate_ids == of_partners) | (owners == ids)
                hidden = is_missing | (hidden & (indices != partners[:, tf.newaxis])) | ~is_new
                scores = tf.where(hidden, least / 2, self._scores(anchors, candidates))
                here = tf.reduce_max(scores, axis=1)
                highest = tf.maximum(most, here)
                shares, kept = tf.exp(scores - highest[:, tf.newaxis]), tf.exp(most - highest)
                return [
                    highest,
                    tf.where(here > most, tf.gather(indices, tf.argmax(scores, axis=1)), nearest),
                    kept * exponentials + tf.reduce_sum(shares, axis=1),
                    *(kept[:, tf.newaxis] * each + tf.matmul(shares, candidates) for each in pulls),
                ]

            nothing = tf.zeros_like(weights)
            state = [nothing + least, tf.zeros_like(partners), nothing, *([tf.zeros_like(anchors)] * trains)]
            columns = every.candidates, every.candidate_ids, owners, is_missing, indices
            most, nearest, exponentials, *pulls = _folded(tile, columns, state)
            log_sums = most + tf.math.log(exponentials)
            of_partner = tf.reduce_sum(anchors * tf.gather(every.candidates, partners), axis=1) / self._temperature
            found = [log_sums - of_partner, nearest == partners, log_sums]
            for pull in pulls:
                pull = pull / exponentials[:, tf.newaxis] - tf.gather(every.candidates, partners)
                found.append(weights[:, tf.newaxis] * pull / self._temperature)
            return found

        rows = own.anchors, own.weights, partners, own.anchor_ids
        anchors, numbers = tf.TensorSpec.from_tensor(own.anchors), tf.TensorSpec.from_tensor(own.weights)
        flags = tf.TensorSpec(numbers.shape, tf.bool)
        return self._in_chunks(chunk, rows, [numbers, flags, numbers, *([anchors] * trains)])

    def _of_columns(self, own: Vectors, every: Vectors, log_sums: tf.Tensor, partners: tf.Tensor) -> tf.Tensor:
        """Returns the gradients of own candidates, [n (k - 1), H]; `partners` has the index of the first one."""
        count = own.candidates.shape[0] // own.weights.shape[0]
        all_partners = count * tf.range(every.weights.shape[0], dtype=tf.int64)

        def chunk(candidates: tf.Tensor, indices: tf.Tensor, ids: tf.Tensor) -> list[tf.Tensor]:
            is_partner, samples = indices % count == 0, indices // count
            own_anchors, each = tf.where(is_partner, tf.gather(own.anchor_ids, samples), 0), ids[:, tf.newaxis]

            def tile(columns: Sequence[tf.Tensor], is_new: tf.Tensor, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
                """Adds anchors to the sums of the anchors times what they push a candidate away."""
                anchors, weights, log_sums, ids, of_partners, partners_here = columns
                hidden = (ids == each) | (of_partners == each) | (ids == own_anchors[:, tf.newaxis])
                counts = ~hidden | (partners_here == (partners[0] + indices)[:, tf.newaxis])
                shares = tf.exp(self._scores(candidates, anchors) - log_sums) * weights
                return [state[0] + tf.matmul(tf.where(counts & is_new, shares, 0), anchors)]

            ids_of_pairs = every.anchor_ids, every.candidate_ids[::count]
            columns = every.anchors, every.weights, log_sums, *ids_of_pairs, all_partners
            (push,) = _folded(tile, columns, [tf.zeros_like(candidates)])
            weights = tf.gather(own.weights, samples)
            pull = tf.where(is_partner, weights, 0)[:, tf.newaxis] * tf.gather(own.anchors, samples)
            push = (push - pull) / self._temperature
            return [tf.where(((weights > 0) & (ids != 0))[:, tf.newaxis], push, 0)]

        rows = own.candidates, tf.range(own.candidates.shape[0], dtype=tf.int64), own.candidate_ids
        return self._in_chunks(chunk, rows, [tf.TensorSpec.from_tensor(own.candidates)])[0]

    def _in_chunks(
        self, function: Callable[..., list[tf.Tensor]], rows: Sequence[tf.Tensor], specs: Sequence[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        """Maps tensors [n, ...] to tensors of some shapes and dtypes, [n, ...], a tile's rows at a time."""
        total = rows[0].shape[0]
        if total <= COMPARED_ROWS:
            return function(*rows)
        return chunk_by_chunk(lambda first: function(*_part(rows, first)), COMPARED_ROWS, specs, self._jit)

    def _scores(self, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        return tf.matmul(rows, columns, transpose_b=True) / self._temperature


def gathered(group: Group, tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the rows of all ranks, which have equally many each."""
    shape = [group.size * tensor.shape[0], *tensor.shape[1:]]
    return tf.ensure_shape(collectives.all_gather_rows(group, tensor, name), shape)


def _folded(
    tile: Callable[..., list[tf.Tensor]], columns: Sequence[tf.Tensor], state: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the state after all tiles; `tile` takes some columns, whether each is new, and the state."""
    total, width = columns[0].shape[0], COMPARED_ROWS
    if total <= width:
        return tile(columns, tf.ones([total], tf.bool), state)

    def body(index: tf.Tensor, *state: tf.Tensor) -> list[tf.Tensor]:
        first = tf.minimum(index * width, total - width)
        return tile(_part(columns, first), first + tf.range(width) >= index * width, state)

    return in_turn(body, state, -(-total // width))


def _part(tensors: Sequence[tf.Tensor], first: tf.Tensor) -> list[tf.Tensor]:
    """Returns a tile's rows of each tensor, from row `first` on."""
    return [tf.slice(each, [first, 0][: each.shape.rank], [COMPARED_ROWS, *each.shape[1:]]) for each in tensors]
