"""The source of masked sentence pairs of which several share a row; see `packing`.

A batch of n rows of S tokens, with at most E examples and P masked tokens in each, has the features of `masked_source`:
input_ids, input_mask and segment_ids, int32 [n, S]; masked_lm_positions and masked_lm_ids, int32 [n, P];
masked_lm_weights, float32 [n, P]. These keep the examples apart:

- sequence_ids, int32 [n, S]: 1 for the tokens of the first example of a row, 2 for those of the second, 0 for padding.
- position_ids, int32 [n, S]: the place of a token in its example; 0 for padding.
- sequence_starts, int32 [n, E]: the place of the first token of each example in the row; 0 for none.
- sequence_weights, float32 [n, E]: 1 for an example, 0 for none.
- next_sentence_labels, int32 [n, E]: of each example; 0 for none.
"""

import tensorflow as tf

from tftrain.input.masked_source import PairRecords
from tftrain.input.masking import Masking
from tftrain.input.records import RecordSet

_LISTS = ("sequence_lengths", "second_segment_start", "next_sentence_labels")  # with a number for each example


class PackedSource(PairRecords):
    """Prepared, unmasked pairs, at most `most` in a record, `examples` in all. They are masked when a batch is read."""

    weights = ("masked_lm_weights", "sequence_weights")

    def __init__(self, records: RecordSet, masking: Masking, id_limit: int, most: int, examples: int):
        super().__init__(records, masking.max_seq_length, masking.max_predictions_per_seq, id_limit)
        of_tokens = dict.fromkeys(("sequence_ids", "position_ids"), masking.max_seq_length)
        of_examples = dict.fromkeys(("sequence_starts", "sequence_weights", "next_sentence_labels"), most)
        self.widths = {**self.widths, **of_tokens, **of_examples}
        self._masking, self._most, self.real_examples = masking, most, examples

    def _features(self, serialized, where, first_sample):
        feature = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
        parsed = tf.io.parse_example(serialized, dict.fromkeys(("input_ids", *_LISTS), feature), example_names=where)
        tokens, counts = parsed["input_ids"], [parsed[name].row_lengths() for name in _LISTS]
        sizes = tokens.row_lengths()
        alike = (counts[0] == counts[1]) & (counts[0] == counts[2]) & (counts[0] > 0) & (counts[0] <= self._most)
        fault = f"the record does not have the same number of each, from 1 to {self._most}: {', '.join(_LISTS)}"
        checks = [self._check(alike, where, fault), self._lengths_fit(where, sizes)]
        with tf.control_dependencies(checks):
            # Padded after the checks, because every row becomes as long as the longest record.
            dense = tokens.with_flat_values(tf.identity(tokens.flat_values)).to_tensor()
            lengths, seconds, labels = (parsed[name].to_tensor(shape=[None, self._most]) for name in _LISTS)
            checks = [
                self._ids_fit(where, dense),
                self._labels_fit(where, labels),
                self._check(
                    tf.reduce_all(parsed["sequence_lengths"] > 0, 1) & (tf.reduce_sum(lengths, 1) == sizes),
                    where,
                    "sequence_lengths are not those of the record's examples",
                ),
                self._check(
                    tf.reduce_all((seconds >= 0) & (seconds <= lengths), 1),
                    where,
                    "second_segment_start is not a place in the tokens of its example",
                ),
            ]
        with tf.control_dependencies(checks):
            flat = tf.cast(tokens.flat_values, tf.int32)
        found = self._masking.packed(flat, lengths, first_sample) | self._places(lengths, seconds)
        return found | {
            "sequence_weights": tf.cast(lengths > 0, tf.float32),
            "next_sentence_labels": tf.cast(labels, tf.int32),
        }

    def _places(self, lengths, seconds):
        """Returns the features that follow from the lengths of the examples and of their first segments, [n, E]."""
        starts, ends = tf.cumsum(lengths, axis=1, exclusive=True), tf.cumsum(lengths, axis=1)
        position = tf.range(self.max_seq_length, dtype=tf.int64)[tf.newaxis, :]  # [1, S]
        within = position < ends[:, -1:]  # [n, S]
        before = tf.reduce_sum(tf.cast(position[:, :, tf.newaxis] >= ends[:, tf.newaxis, :], tf.int64), 2)
        number = tf.minimum(before, self._most - 1)  # of a token's example in its row
        in_example = position - tf.gather(starts, number, batch_dims=1)
        second = in_example >= tf.gather(seconds, number, batch_dims=1)
        none = tf.zeros([], tf.int64)
        found = {
            "input_mask": within,
            "segment_ids": within & second,
            "sequence_ids": tf.where(within, number + 1, none),
            "position_ids": tf.where(within, in_example, none),
            "sequence_starts": tf.where(lengths > 0, starts, none),
        }
        return {name: tf.cast(value, tf.int32) for name, value in found.items()}
