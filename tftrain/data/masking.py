"""Masked-LM masking as a function of the seed and the sample number.

Every sample has a block of a counter-based random stream (Philox 4x32-10: Salmon et al., "Parallel Random Numbers: As
Easy as 1, 2, 3", 2011). The key of the stream is derived from the seed. So the mask of a sample does not depend on its
batch, its position in the batch or its rank, and is the same after a restart. In the next epoch an example has another
sample number, so it gets another mask.

15% of the tokens (`masked_lm_prob`) are selected, at most `max_predictions_per_seq`. Of these, 80% become [MASK], 10%
become a random token and 10% do not change (BERT, arXiv 1810.04805, section 3.1). tensorflow-text's
`mask_language_model` replaces the tokens; `_Selector` and `_Chooser` supply its random choices.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import tensorflow as tf
import tensorflow_text as tf_text

from tftrain.data.order import derive_key
from tftrain.tokenizer.vocabulary import Vocabulary

_PHILOX = 1
_MASK_RATE = 0.8
_RANDOM_RATE = 0.1


@dataclass(frozen=True)
class Masking:
    """How the tokens of a batch are masked.

    Whole words, if they are selected instead of tokens, are visited in random order, and each word that fits into the
    rest of the budget is selected (as BERT does). If no word fits, the sample has no predictions.
    """

    vocabulary: Vocabulary  # defines the special tokens, the word starts and the random replacements
    max_seq_length: int  # S, and P below, are the widths of the results
    max_predictions_per_seq: int
    masked_lm_prob: float  # share of the tokens to select. The budget of a sample is at least one token.
    whole_words: bool
    key: int  # selects the random stream, see `stream_key`

    def __call__(self, tokens: tf.RaggedTensor, first_sample: tf.Tensor) -> dict[str, tf.Tensor]:
        """Masks a block of consecutive samples, of which `first_sample`, int64, is the global number of the first one.

        Args:
            tokens: int32 [n, (length)], including special tokens; each length is at most S.

        Returns:
            input_ids int32 [n, S]; masked_lm_positions and masked_lm_ids int32 [n, P]; masked_lm_weights float32
            [n, P].
        """
        return self._dense(*self._mask(tokens, first_sample, self.max_predictions_per_seq))

    def packed(self, tokens: tf.Tensor, lengths: tf.Tensor, first_row: tf.Tensor) -> dict[str, tf.Tensor]:
        """Masks a block of consecutive rows of examples, each example by itself.

        An example of t tokens has at most ceil((P - E) t / S) predictions. So those of a row fit into P.

        Args:
            tokens: int32 [tokens of all rows], the rows one after the other, including special tokens.
            lengths: int64 [n, E], tokens of each example of a row; 0 for none. A row has at most S.
            first_row: int64 scalar, the global number of the first row.

        Returns:
            As of a call, for rows: positions count from the first token of a row.
        """
        rows, most = tf.shape(lengths)[0], lengths.shape[1]
        of_examples = tf.reshape(lengths, [-1])  # [n * E]
        share = tf.cast((self.max_predictions_per_seq - most) * of_examples, tf.float64) / self.max_seq_length
        limits = tf.maximum(tf.cast(tf.math.ceil(share), tf.int32), 1)
        # Every row has random numbers for E examples, so those of an example depend on its place alone.
        examples = tf.RaggedTensor.from_row_lengths(tokens, of_examples)
        masked, positions, labels = self._mask(examples, first_row * most, limits)
        starts = tf.reshape(tf.cumsum(lengths, axis=1, exclusive=True), [-1])
        counts = labels.row_lengths()
        in_rows = tf.reduce_sum(tf.reshape(counts, [rows, most]), 1)
        shifted = tf.cast(positions.flat_values, tf.int64) + tf.repeat(starts, counts)
        return self._dense(
            tf.RaggedTensor.from_row_lengths(masked.flat_values, tf.reduce_sum(lengths, 1)),
            tf.RaggedTensor.from_row_lengths(shifted, in_rows),
            tf.RaggedTensor.from_row_lengths(labels.flat_values, in_rows),
        )

    def _mask(self, tokens: tf.RaggedTensor, first_sample: tf.Tensor, limit: int | tf.Tensor):
        """Returns the masked tokens of each sample, the masked positions and what stood there, all ragged.

        `limit` is the most predictions of each sample, one for all or int32 [n].
        """
        # All are tensors: a number of Python would be traced for each of its values.
        first, limit = tf.convert_to_tensor(first_sample, tf.int64), tf.convert_to_tensor(limit, tf.int32)
        return _masks(replace(self, key=0))(tokens, tf.constant(self.key, tf.uint64), first, limit)

    def _dense(self, masked: tf.Tensor, positions: tf.RaggedTensor, labels: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        length, slots = self.max_seq_length, self.max_predictions_per_seq
        return {
            "input_ids": masked.to_tensor(self.vocabulary.padding_id, shape=[None, length]),
            "masked_lm_positions": tf.cast(positions.to_tensor(shape=[None, slots]), tf.int32),
            "masked_lm_ids": labels.to_tensor(shape=[None, slots]),
            "masked_lm_weights": tf.sequence_mask(labels.row_lengths(), slots, tf.float32),
        }


@functools.cache
def _masks(masking: Masking) -> Callable:
    """Returns what `_mask` computes, as a function that is traced once for all streams: that takes 0.1 seconds."""
    length, slots = masking.max_seq_length, masking.max_predictions_per_seq

    @tf.function(autograph=False, reduce_retracing=True)
    def masks(tokens: tf.RaggedTensor, key: tf.Tensor, first_sample: tf.Tensor, limit: tf.Tensor):
        draws = random_block(key, first_sample, tokens.nrows(), length + 2 * slots)
        selector = _Selector(masking, draws[:, :length], limit)
        chooser = _Chooser(masking.vocabulary, draws[:, length : length + slots], draws[:, length + slots :])
        return tf_text.mask_language_model(tokens, selector, chooser)

    return masks


def stream_key(seed: int, purpose: str) -> int:
    """Returns the key of a random stream. Streams of different purposes are independent."""
    return int(derive_key(seed, *purpose.encode()))


def random_block(key: int | tf.Tensor, first_sample: tf.Tensor, rows: tf.Tensor, width: int) -> tf.Tensor:
    """Returns the random numbers of consecutive samples, float32 [rows, width], uniform in [0, 1).

    A row depends on the key, uint64, and the global sample number alone, which is int64 `first_sample` in the first
    row. Philox makes four numbers from each counter value, and every sample has ceil(width / 4) counter values.
    """
    groups = -(-width // 4)
    counter = tf.bitcast(tf.stack([first_sample * groups, tf.zeros([], tf.int64)]), tf.uint64)
    shape = tf.stack([tf.cast(rows, tf.int32), 4 * groups])
    key = tf.convert_to_tensor(key, tf.uint64)
    return tf.raw_ops.StatelessRandomUniformV2(shape=shape, key=key[None], counter=counter, alg=_PHILOX)[:, :width]


class _Selector(tf_text.RandomItemSelector):
    """Selects a share of the words or tokens of each sample: those with the smallest random scores."""

    def __init__(self, masking: Masking, scores: tf.Tensor, limit: int | tf.Tensor):
        special = list(masking.vocabulary.roles.special)
        super().__init__(masking.max_predictions_per_seq, masking.masked_lm_prob, unselectable_ids=special)
        self._masking, self._scores, self._limit = masking, scores, limit

    def get_selection_mask(self, input_ids: tf.RaggedTensor, axis: int) -> tf.RaggedTensor:
        """Returns bool [n, (length)]: true for selected tokens."""
        masking, length = self._masking, self._masking.max_seq_length
        selectable = self.get_selectable(input_ids, axis).to_tensor(shape=[None, length])
        share = tf.round(tf.reduce_sum(tf.cast(selectable, tf.float32), 1) * self.selection_rate)
        budget = tf.clip_by_value(tf.cast(share, tf.int32), 1, self._limit)[:, None]
        if masking.whole_words:
            starts = tf.gather(tf.constant(masking.vocabulary.word_starts), input_ids.to_tensor(shape=[None, length]))
            # A token that cannot be selected, such as a special token, is a word of its own.
            after_special = tf.pad(~selectable[:, :-1], [[0, 0], [1, 0]], constant_values=True)
            word = tf.cumsum(tf.cast(starts | ~selectable | after_special, tf.int32), 1) - 1
        else:
            word = tf.broadcast_to(tf.range(length), tf.shape(selectable))
        rows = tf.shape(selectable)[0]
        segment = tf.range(rows)[:, None] * length + word
        sizes = tf.math.unsorted_segment_sum(tf.cast(selectable, tf.int32), segment, rows * length)
        sizes = tf.reshape(sizes, [rows, length])
        candidate = (sizes > 0) & (sizes <= budget)
        order = tf.argsort(tf.where(candidate, self._scores, 2.0), stable=True)
        ordered = tf.gather(tf.where(candidate, sizes, length), order, batch_dims=1)
        fits = _greedy_selection(ordered, budget) if masking.whole_words else tf.cumsum(ordered, 1) <= budget
        places = tf.stack([tf.broadcast_to(tf.range(rows)[:, None], tf.shape(order)), order], -1)
        chosen = tf.scatter_nd(places, fits, tf.shape(order))
        selected = tf.gather(chosen, word, batch_dims=1) & selectable
        return tf.RaggedTensor.from_tensor(selected, lengths=input_ids.row_lengths())


def _greedy_selection(sizes: tf.Tensor, budget: tf.Tensor) -> tf.Tensor:
    """Visits the words in order and selects each word that fits into the rest of the budget.

    This is the greedy rule of BERT's create_pretraining_data. The loop runs in rounds. A round selects the words before
    the first word that exceeds the rest of the budget. The rest never grows, so later rounds skip all words of that
    size or larger. So there are at most as many rounds as different sizes. The samples are independent of each other.

    Args:
        sizes: int32 [n, S], tokens of each word in visiting order; larger than the budget for words to skip.
        budget: int32 [n, 1], maximum number of tokens to select.

    Returns:
        bool [n, S]: true for selected words.
    """

    def fits(selected: tf.Tensor, remaining: tf.Tensor) -> tf.Tensor:
        return ~selected & (sizes <= remaining)

    def select(selected: tf.Tensor, remaining: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        candidate = tf.where(fits(selected, remaining), sizes, 0)
        added = (candidate > 0) & (tf.cumsum(candidate, 1) <= remaining)
        return selected | added, remaining - tf.reduce_sum(tf.where(added, sizes, 0), 1, keepdims=True)

    state = [tf.zeros_like(sizes, tf.bool), budget]
    selected, _ = tf.while_loop(lambda *state: tf.reduce_any(fits(*state)), select, state)
    return selected


class _Chooser(tf_text.MaskValuesChooser):
    """Replaces the selected tokens, with two random numbers float32 [n, P] for each prediction.

    `action` decides between [MASK], a random token and no change; `choice` picks the random token.
    """

    def __init__(self, vocabulary: Vocabulary, action: tf.Tensor, choice: tf.Tensor):
        super().__init__(len(vocabulary), vocabulary.roles.mask, _MASK_RATE, _RANDOM_RATE)
        self._ordinary, self._action, self._choice = vocabulary.ordinary_ids, action, choice

    def get_mask_values(self, masked_lm_ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the replacement of each selected token, in the shape of `masked_lm_ids`."""
        used = tf.sequence_mask(masked_lm_ids.row_lengths(), self._action.shape[1])
        action, choice = tf.boolean_mask(self._action, used), tf.boolean_mask(self._choice, used)
        labels, count = masked_lm_ids.flat_values, len(self._ordinary)
        # A float32 product can round up to `count`.
        index = tf.minimum(tf.cast(choice * count, tf.int32), count - 1)
        random_ids = tf.gather(tf.constant(self._ordinary), index)
        mask = tf.fill(tf.shape(labels), tf.cast(self.mask_token, labels.dtype))
        values = tf.where(action < _MASK_RATE, mask, tf.where(action < _MASK_RATE + _RANDOM_RATE, random_ids, labels))
        return masked_lm_ids.with_flat_values(values)
