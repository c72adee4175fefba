"""Sources of masked sentence pairs: prepared records, records in the standard BERT format, and synthetic data.

A batch of n examples of S tokens, P of them masked at most, has the features input_ids, input_mask and segment_ids,
int32 [n, S]; masked_lm_positions and masked_lm_ids, int32 [n, P]; masked_lm_weights, float32 [n, P]; and
next_sentence_labels, int32 [n] (1: the second text is random).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tftrain.data.example import decode
from tftrain.data.example_source import SYNTHETIC_EXAMPLES, Batch, ExampleSource, Order, RecordSource
from tftrain.data.masking import Masking, random_block, stream_key
from tftrain.data.objectives import TOKEN_TYPES
from tftrain.data.records import RecordSet
from tftrain.data.sizes import Sizes, predictions

_WEIGHTS = ("masked_lm_weights",)
_LISTS = ("sequence_lengths", "second_segment_start", "next_sentence_labels")  # with a number for each example


def widths(max_seq_length: int, max_predictions_per_seq: int) -> dict[str, int | None]:
    """Returns the number of elements of each feature of an example, see `ExampleSource.widths`."""
    of_tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), max_seq_length)
    of_masks = dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), max_predictions_per_seq)
    return {**of_tokens, **of_masks, "next_sentence_labels": None}


class PairRecords(RecordSource):
    """Sentence pairs in TFRecord files, with P = `max_predictions_per_seq` masked tokens at most."""

    weights = _WEIGHTS

    def __init__(self, records: RecordSet, sizes: Sizes):
        id_limit, length, self.max_predictions_per_seq = sizes
        super().__init__(records, length, widths(length, self.max_predictions_per_seq), id_limit)

    def lengths(self, examples: np.ndarray) -> np.ndarray:
        """Returns the tokens of examples; wrong features show when the batch is read."""
        records = self._records.read_all(examples.tolist())
        return np.array([self._length(decode(payload, place)) for place, payload in records], np.int64)

    def widths_at(self, length: int) -> dict[str, int | None]:
        """Returns the widths of shorter batches."""
        return widths(length, self.max_predictions_per_seq)

    def _length(self, features: Mapping[str, Sequence]) -> int:
        return len(features.get("input_ids", ()))

    def _lengths_fit(self, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the rule of the tokens of each record, int64 [n]."""
        fault = f"the record has no tokens or more than --max_seq_length={self.max_seq_length}"
        return {fault: (lengths > 0) & (lengths <= self.max_seq_length)}

    def _labels_fit(self, labels: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the rule of next_sentence_labels, int64 [n] or, of packed examples, [n, examples]."""
        return {"next_sentence_labels is neither 0 nor 1; expected one of them": (labels == 0) | (labels == 1)}


class DynamicSource(PairRecords):
    """Prepared, unmasked pairs. They are masked when a batch is read."""

    def __init__(self, records: RecordSet, masking: Masking, id_limit: int):
        super().__init__(records, Sizes(id_limit, masking.max_seq_length, masking.max_predictions_per_seq))
        self._masking = masking

    def widths_at(self, length: int) -> dict[str, int | None]:
        """Returns the widths of shorter batches, which have fewer predictions too."""
        return widths(length, min(self.max_predictions_per_seq, predictions(length, self._masking.masked_lm_prob)))

    def _features(self, serialized: tf.Tensor, where: tf.Tensor, first_sample: tf.Tensor) -> Batch:
        features = {
            "input_ids": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
            "second_segment_start": tf.io.FixedLenFeature([], tf.int64),
            "next_sentence_labels": tf.io.FixedLenFeature([], tf.int64),
        }
        parsed = tf.io.parse_example(serialized, features, example_names=where)
        tokens, start = parsed["input_ids"], parsed["second_segment_start"]
        lengths = tokens.row_lengths()
        with tf.control_dependencies(self._checks(where, self._lengths_fit(lengths))):
            # Padded after the check, because every row becomes as long as the longest record.
            dense = tokens.with_flat_values(tf.identity(tokens.flat_values)).to_tensor()
        rules = self._ids_fit(dense) | self._labels_fit(parsed["next_sentence_labels"])
        rules["second_segment_start is not a place in the record's tokens"] = (start >= 0) & (start <= lengths)
        with tf.control_dependencies(self._checks(where, rules)):
            tokens = tokens.with_flat_values(tf.cast(tokens.flat_values, tf.int32))
        position = tf.range(self.max_seq_length, dtype=tf.int64)[None, :]
        within = position < lengths[:, None]
        second = within & (position >= start[:, None])
        return self._masking(tokens, first_sample) | {
            "input_mask": tf.cast(within, tf.int32),
            "segment_ids": tf.cast(second, tf.int32),
            "next_sentence_labels": tf.cast(parsed["next_sentence_labels"], tf.int32),
        }


class PackedSource(DynamicSource):
    """Prepared, unmasked pairs, at most E in a row, `examples` in all. They are masked when a batch is read.

    The batch of n rows has features that keep the examples apart, and next_sentence_labels of each, int32 [n, E]:

    - sequence_ids, int32 [n, S]: 1 for the tokens of the first example of a row, 2 for those of the second, and so on.
    - position_ids, int32 [n, S]: the place of a token in its example.
    - sequence_starts, int32 [n, E]: the place of the first token of each example in the row.
    - sequence_weights, float32 [n, E]: 1 for an example.

    All are 0 for padding and where there is no example.
    """

    weights = ("masked_lm_weights", "sequence_weights")

    def __init__(self, records: RecordSet, masking: Masking, id_limit: int, most: int, examples: int):
        super().__init__(records, masking, id_limit)
        of_tokens = dict.fromkeys(("sequence_ids", "position_ids"), masking.max_seq_length)
        of_examples = dict.fromkeys(("sequence_starts", "sequence_weights", "next_sentence_labels"), most)
        self.widths = {**self.widths, **of_tokens, **of_examples}
        self._most, self.real_examples = most, examples

    def _features(self, serialized: tf.Tensor, where: tf.Tensor, first_sample: tf.Tensor) -> Batch:
        feature = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
        parsed = tf.io.parse_example(serialized, dict.fromkeys(("input_ids", *_LISTS), feature), example_names=where)
        tokens, counts = parsed["input_ids"], [parsed[name].row_lengths() for name in _LISTS]
        sizes = tokens.row_lengths()
        alike = (counts[0] == counts[1]) & (counts[0] == counts[2]) & (counts[0] > 0) & (counts[0] <= self._most)
        fault = f"the record does not have the same number of each, from 1 to {self._most}: {', '.join(_LISTS)}"
        with tf.control_dependencies(self._checks(where, {fault: alike} | self._lengths_fit(sizes))):
            # Padded after the checks, because every row becomes as long as the longest record.
            dense = tokens.with_flat_values(tf.identity(tokens.flat_values)).to_tensor()
            lengths, seconds, labels = (parsed[name].to_tensor(shape=[None, self._most]) for name in _LISTS)
            are_sizes = tf.reduce_all(parsed["sequence_lengths"] > 0, 1) & (tf.reduce_sum(lengths, 1) == sizes)
            are_places = (seconds >= 0) & (seconds <= lengths)
            rules = self._ids_fit(dense) | self._labels_fit(labels)
            rules["sequence_lengths are not those of the record's examples"] = are_sizes
            rules["second_segment_start is not a place in the tokens of its example"] = are_places
            checks = self._checks(where, rules)
        with tf.control_dependencies(checks):
            flat = tf.cast(tokens.flat_values, tf.int32)
        features = self._masking.packed(flat, lengths, first_sample) | self._places(lengths, seconds)
        return features | {
            "sequence_weights": tf.cast(lengths > 0, tf.float32),
            "next_sentence_labels": tf.cast(labels, tf.int32),
        }

    def _places(self, lengths: tf.Tensor, seconds: tf.Tensor) -> Batch:
        """Returns the features that follow from the lengths of the examples and of their first texts, [n, E]."""
        starts, ends = tf.cumsum(lengths, axis=1, exclusive=True), tf.cumsum(lengths, axis=1)
        position = tf.range(self.max_seq_length, dtype=tf.int64)[tf.newaxis, :]  # [1, S]
        within = position < ends[:, -1:]  # [n, S]
        before = tf.reduce_sum(tf.cast(position[:, :, tf.newaxis] >= ends[:, tf.newaxis, :], tf.int64), 2)
        number = tf.minimum(before, self._most - 1)  # numbers a token's example in its row
        in_example = position - tf.gather(starts, number, batch_dims=1)
        second = in_example >= tf.gather(seconds, number, batch_dims=1)
        none = tf.zeros([], tf.int64)
        positions = {
            "input_mask": within,
            "segment_ids": within & second,
            "sequence_ids": tf.where(within, number + 1, none),
            "position_ids": tf.where(within, in_example, none),
            "sequence_starts": tf.where(lengths > 0, starts, none),
        }
        return {name: tf.cast(value, tf.int32) for name, value in positions.items()}


class StaticSource(PairRecords):
    """Records in the standard BERT pre-training format, which contain the masks."""

    def _length(self, features: Mapping[str, Sequence]) -> int:
        places = [*np.flatnonzero(features.get("input_mask", ())), *features.get("masked_lm_positions", ())]
        return int(max(places, default=0)) + 1

    def _features(self, serialized: tf.Tensor, where: tf.Tensor, first_sample: tf.Tensor) -> Batch:
        length = self.max_seq_length
        features = {
            name: tf.io.FixedLenFeature([width or 1], tf.float32 if name in self.weights else tf.int64)
            for name, width in self.widths.items()
        }
        parsed = tf.io.parse_example(serialized, features, example_names=where)
        positions, weights = parsed["masked_lm_positions"], parsed["masked_lm_weights"]
        token_types, mask = parsed["segment_ids"], parsed["input_mask"]
        types = f"a token type is negative or too large; expected token types below {TOKEN_TYPES}"
        share = "one of masked_lm_weights is not a number from 0 to 1; expected 1 for a masked token and 0 for none"
        places = f"a masked position is outside the sequence; expected positions below {length}"
        rules = {
            places: (positions >= 0) & (positions < length),
            **self._ids_fit(parsed["input_ids"], parsed["masked_lm_ids"]),
            **self._labels_fit(parsed["next_sentence_labels"][:, 0]),
            types: (token_types >= 0) & (token_types < TOKEN_TYPES),
            "input_mask is neither 0 nor 1 somewhere": (mask == 0) | (mask == 1),
            share: (weights >= 0) & (weights <= 1),  # false for NaN too
        }
        with tf.control_dependencies(self._checks(where, rules)):
            batch = {name: tf.cast(value, tf.int32) for name, value in parsed.items()}
            batch["masked_lm_weights"] = tf.identity(weights)
        return batch | {"next_sentence_labels": batch["next_sentence_labels"][:, 0]}


class SyntheticPairs(ExampleSource):
    """Random token ids in sequences of full length with P predictions each: the largest work for these sizes."""

    weights = _WEIGHTS

    def __init__(self, split: str, sizes: Sizes, seed: int):
        self._vocab_size, length, self.max_predictions_per_seq = sizes
        super().__init__(SYNTHETIC_EXAMPLES[split], length, widths(length, self.max_predictions_per_seq))
        self._key = stream_key(seed, f"synthetic {split}")

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples; `order` is not used."""
        length, slots = self.max_seq_length, self.max_predictions_per_seq
        draws = random_block(self._key, first_sample, tf.constant(count), length + slots + 1)

        def ids(part: tf.Tensor) -> tf.Tensor:
            return tf.minimum(4 + tf.cast(part * (self._vocab_size - 4), tf.int32), self._vocab_size - 1)

        begin, end = tf.fill([count, 1], 2), tf.fill([count, 1], 3)
        positions = 1 + np.arange(slots) * (length - 2) // slots
        return {
            "input_ids": tf.concat([begin, ids(draws[:, 1 : length - 1]), end], 1),
            "input_mask": tf.ones([count, length], tf.int32),
            "segment_ids": tf.tile(tf.constant(np.arange(length)[None, :] >= length // 2, tf.int32), [count, 1]),
            "masked_lm_positions": tf.tile(tf.constant(positions[None, :], tf.int32), [count, 1]),
            "masked_lm_ids": ids(draws[:, length : length + slots]),
            "masked_lm_weights": tf.ones([count, slots]),
            "next_sentence_labels": tf.cast(draws[:, -1] < 0.5, tf.int32),
        }
