"""Sources of sequences for a decoder: records, prepared here or elsewhere, and synthetic data.

A record has S + 1 token ids. A batch of n examples has the features input_ids, the first S of them, and labels, the
last S: int32 [n, S].
"""

import tensorflow as tf

from tftrain.input.example_source import SYNTHETIC_EXAMPLES, Batch, ExampleSource, Order, RecordSource
from tftrain.input.masking import random_block, stream_key
from tftrain.input.records import RecordSet


class CausalSource(RecordSource):
    """Sequences in TFRecord files."""

    def __init__(self, records: RecordSet, max_seq_length: int, id_limit: int):
        """Every record has max_seq_length + 1 ids, each below `id_limit`, the number of rows of the embedding."""
        super().__init__(records, max_seq_length, _widths(max_seq_length), id_limit)

    def _features(self, serialized, where, first_sample):
        parsed = tf.io.parse_example(
            serialized,
            {"input_ids": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)},
            example_names=where,
        )
        tokens, length = parsed["input_ids"], self.max_seq_length + 1
        fits = self._check(
            tokens.row_lengths() == length,
            where,
            f"the record does not have {length} input_ids; expected max_seq_length={length - 1} inputs and a label",
        )
        with tf.control_dependencies([fits]):
            # Reshaped after the check, because each record then has the same length.
            ids = tf.reshape(tf.identity(tokens.flat_values), [-1, length])
        with tf.control_dependencies([self._ids_fit(where, ids)]):
            return _inputs_and_labels(tf.cast(ids, tf.int32))


class SyntheticSequences(ExampleSource):
    """Random token ids."""

    def __init__(self, split: str, max_seq_length: int, vocab_size: int, seed: int):
        super().__init__(SYNTHETIC_EXAMPLES[split], max_seq_length, _widths(max_seq_length))
        self._vocab_size = vocab_size
        self._key = stream_key(seed, f"synthetic {split}")

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples, as `ExampleSource.batch`. `order` is not used."""
        draws = random_block(self._key, first_sample, tf.constant(count), self.max_seq_length + 1)
        return _inputs_and_labels(tf.minimum(tf.cast(draws * self._vocab_size, tf.int32), self._vocab_size - 1))


def _widths(max_seq_length: int) -> dict[str, int | None]:
    return {"input_ids": max_seq_length, "labels": max_seq_length}


def _inputs_and_labels(ids: tf.Tensor) -> Batch:
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
