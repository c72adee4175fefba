"""Masked-LM masking whose choices depend on the seed and the sample's number alone.

Every sample owns a block of a counter-based random stream (Philox 4x32-10: Salmon et al., "Parallel Random Numbers: As
Easy as 1, 2, 3", 2011) under a key made from the seed. So a sample is masked in the same way in whichever batch, at
whichever place and on whichever rank it is, and again after a restart. In a new epoch an example is another sample, and
has another mask.

What is selected: 15% of the tokens (`masked_lm_prob`), at most `max_predictions_per_seq`; of these 80% become [MASK],
10% another token and 10% stay (BERT, arXiv 1810.04805, section 3.1). The replacing is done by tensorflow-text's
`mask_language_model`; the selector and the chooser below give it the random numbers.
"""

from dataclasses import dataclass

import tensorflow as tf
import tensorflow_text as tf_text

from tftrain.data.order import derive_key
from tftrain.data.vocabulary import Vocabulary

_PHILOX = 1
_MASK_RATE = 0.8
_RANDOM_RATE = 0.1


@dataclass(frozen=True)
class Masking:
    """How the tokens of a batch are masked.

    Attributes:
        vocabulary: gives the special tokens, the word starts and the tokens to replace by.
        max_seq_length, max_predictions_per_seq: S and P, the widths of the results.
        masked_lm_prob: share of the tokens that is selected; at least one token of a sample is.
        whole_words: select words, in random order; one whose pieces no longer fit into a sample's share is left out,
            and later ones that fit are still taken (as BERT does). A sample none of whose words fits has no prediction.
        key: of the random stream, from `stream_key`.
    """

    vocabulary: Vocabulary
    max_seq_length: int
    max_predictions_per_seq: int
    masked_lm_prob: float
    whole_words: bool
    key: int

    def __call__(self, tokens: tf.RaggedTensor, first_sample: tf.Tensor) -> dict[str, tf.Tensor]:
        """Masks a block of consecutive samples.

        Args:
            tokens: int32 [n, (length)], special tokens included, lengths of at most S.
            first_sample: int64 scalar, the global number of the block's first sample.

        Returns:
            input_ids int32 [n, S]; masked_lm_positions and masked_lm_ids int32 [n, P]; masked_lm_weights float32
            [n, P].
        """
        length, slots = self.max_seq_length, self.max_predictions_per_seq
        rows = tokens.nrows()
        draws = random_block(self.key, first_sample, rows, length + 2 * slots)
        selector = _Selector(self, draws[:, :length])
        chooser = _Chooser(self.vocabulary, draws[:, length : length + slots], draws[:, length + slots :])
        masked, positions, labels = tf_text.mask_language_model(tokens, selector, chooser)
        return {
            "input_ids": masked.to_tensor(shape=[None, length]),
            "masked_lm_positions": tf.cast(positions.to_tensor(shape=[None, slots]), tf.int32),
            "masked_lm_ids": labels.to_tensor(shape=[None, slots]),
            "masked_lm_weights": tf.sequence_mask(labels.row_lengths(), slots, tf.float32),
        }


def stream_key(seed: int, purpose: str) -> int:
    """Returns the key of one random stream of a run; different purposes have independent streams."""
    return int(derive_key(seed, *purpose.encode()))


def random_block(key: int, first_sample: tf.Tensor, rows: tf.Tensor, width: int) -> tf.Tensor:
    """Returns each sample's own random numbers.

    Args:
        key: of the stream.
        first_sample: int64 scalar, the first of `rows` consecutive global sample numbers.
        rows: how many samples.
        width: numbers for each sample.

    Returns:
        float32 [rows, width], uniform in [0, 1). A row is a function of the key and its sample's number: Philox makes
        four numbers of each value of its counter, and every sample has ceil(width / 4) values of it.
    """
    groups = -(-width // 4)
    counter = tf.bitcast(tf.stack([first_sample * groups, tf.zeros([], tf.int64)]), tf.uint64)
    shape = tf.stack([tf.cast(rows, tf.int32), 4 * groups])
    draws = tf.raw_ops.StatelessRandomUniformV2(
        shape=shape, key=tf.constant([key], tf.uint64), counter=counter, alg=_PHILOX
    )
    return draws[:, :width]


class _Selector(tf_text.RandomItemSelector):
    """Selects a share of each sample's words or tokens, those with the smallest of the given random numbers."""

    def __init__(self, masking: Masking, scores: tf.Tensor):
        super().__init__(
            masking.max_predictions_per_seq,
            masking.masked_lm_prob,
            unselectable_ids=list(masking.vocabulary.special_ids),
        )
        self._masking, self._scores = masking, scores

    def get_selection_mask(self, input_ids: tf.RaggedTensor, axis: int) -> tf.RaggedTensor:
        """Returns bool [n, (length)]: which tokens are selected."""
        masking, length = self._masking, self._masking.max_seq_length
        selectable = self.get_selectable(input_ids, axis).to_tensor(shape=[None, length])
        share = tf.round(tf.reduce_sum(tf.cast(selectable, tf.float32), 1) * self.selection_rate)
        budget = tf.clip_by_value(tf.cast(share, tf.int32), 1, self.max_selections_per_batch)[:, None]
        if masking.whole_words:
            starts = tf.gather(tf.constant(masking.vocabulary.word_starts), input_ids.to_tensor(shape=[None, length]))
            # A special token ends a word, and so does one that cannot be selected.
            after_special = tf.pad(~selectable[:, :-1], [[0, 0], [1, 0]], constant_values=True)
            word = tf.cumsum(tf.cast(starts | ~selectable | after_special, tf.int32), 1) - 1
        else:
            word = tf.broadcast_to(tf.range(length), tf.shape(selectable))
        rows = tf.shape(selectable)[0]
        cell = tf.range(rows)[:, None] * length + word
        sizes = tf.math.unsorted_segment_sum(tf.cast(selectable, tf.int32), cell, rows * length)
        sizes = tf.reshape(sizes, [rows, length])
        candidate = (sizes > 0) & (sizes <= budget)
        order = tf.argsort(tf.where(candidate, self._scores, 2.0), stable=True)
        ordered = tf.gather(tf.where(candidate, sizes, length), order, batch_dims=1)
        taken = _take_what_fits(ordered, budget) if masking.whole_words else tf.cumsum(ordered, 1) <= budget
        chosen = tf.scatter_nd(
            tf.stack([tf.broadcast_to(tf.range(rows)[:, None], tf.shape(order)), order], -1),
            taken,
            tf.shape(order),
        )
        selected = tf.gather(chosen, word, batch_dims=1) & selectable
        return tf.RaggedTensor.from_tensor(selected, lengths=input_ids.row_lengths())


def _take_what_fits(sizes: tf.Tensor, budget: tf.Tensor) -> tf.Tensor:
    """Goes over words once, taking each that still fits: the greedy rule of BERT's create_pretraining_data.

    A round takes the words up to the first that does not fit. That one is longer than what then remains, and what
    remains never grows, so each round's misfit is shorter than the one before: there are no more rounds than different
    sizes, and a sample's rounds do not depend on the others'.

    Args:
        sizes: int32 [n, S], tokens of each word in the order of going over them; larger than the budget if not to take.
        budget: int32 [n, 1], tokens to take at most.

    Returns:
        bool [n, S]: which words are taken.
    """

    def fits(taken, remaining):
        return ~taken & (sizes <= remaining)

    def another(taken, remaining):
        return tf.reduce_any(fits(taken, remaining))

    def take(taken, remaining):
        candidate = tf.where(fits(taken, remaining), sizes, 0)
        now = (candidate > 0) & (tf.cumsum(candidate, 1) <= remaining)
        return taken | now, remaining - tf.reduce_sum(tf.where(now, sizes, 0), 1, keepdims=True)

    taken, _ = tf.while_loop(another, take, [tf.zeros_like(sizes, tf.bool), budget])
    return taken


class _Chooser(tf_text.MaskValuesChooser):
    """Replaces selected tokens by the given random numbers, two for each place of a sample's predictions."""

    def __init__(self, vocabulary: Vocabulary, what: tf.Tensor, which: tf.Tensor):
        super().__init__(len(vocabulary), vocabulary.id("[MASK]"), _MASK_RATE, _RANDOM_RATE)
        self._ordinary, self._what, self._which = vocabulary.ordinary_ids, what, which

    def get_mask_values(self, masked_lm_ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns what stands in the place of each selected token, in the shape of `masked_lm_ids`."""
        taken = tf.sequence_mask(masked_lm_ids.row_lengths(), self._what.shape[1])
        what, which = tf.boolean_mask(self._what, taken), tf.boolean_mask(self._which, taken)
        labels, count = masked_lm_ids.flat_values, len(self._ordinary)
        # A float32 product can round up to `count` itself.
        number = tf.minimum(tf.cast(which * count, tf.int32), count - 1)
        other = tf.gather(tf.constant(self._ordinary), number)
        mask = tf.fill(tf.shape(labels), tf.cast(self.mask_token, labels.dtype))
        values = tf.where(what < _MASK_RATE, mask, tf.where(what < _MASK_RATE + _RANDOM_RATE, other, labels))
        return masked_lm_ids.with_flat_values(values)
