"""Sources of sequences for a decoder: records, prepared here or elsewhere, and synthetic data.

A record has S + 1 token ids. A batch of n examples has the features input_ids, the first S of them, and labels, the
last S: int32 [n, S]. If the documents of a row do not see each other, it has two more, int32 [n, S]: sequence_ids,
which number the documents of a row from 1, and position_ids, the place of a token in its document, or in the row if the
document began before it. An end token is the first token of the next document: so no document has a part in the loss of
another.
"""

import tensorflow as tf

from tftrain.data.example_source import SYNTHETIC_EXAMPLES, Batch, ExampleSource, Order, RecordSource
from tftrain.data.masking import random_block, stream_key
from tftrain.data.records import RecordSet
from tftrain.data.sizes import Sizes

_NAMES = ("input_ids", "labels")


class CausalSource(RecordSource):
    """Sequences in TFRecord files. `end_id` is the end token, if the documents of a row do not see each other."""

    def __init__(self, records: RecordSet, sizes: Sizes, end_id: int | None = None):
        names = (*_NAMES, *(() if end_id is None else ("sequence_ids", "position_ids")))
        super().__init__(records, sizes.max_seq_length, dict.fromkeys(names, sizes.max_seq_length), sizes.vocab_size)
        self._end_id = end_id

    def _features(self, serialized: tf.Tensor, where: tf.Tensor, first_sample: tf.Tensor) -> Batch:
        features = {"input_ids": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)}
        tokens = tf.io.parse_example(serialized, features, example_names=where)["input_ids"]
        length = self.max_seq_length + 1
        fault = f"the record must have {length} input_ids: --max_seq_length={length - 1} inputs and a label"
        with tf.control_dependencies(self._checks(where, {fault: tokens.row_lengths() == length})):
            # Reshaped after the check, because each record then has the same length.
            ids = tf.reshape(tf.identity(tokens.flat_values), [-1, length])
        with tf.control_dependencies(self._checks(where, self._ids_fit(ids))):
            batch = _inputs_and_labels(tf.cast(ids, tf.int32))
        return batch if self._end_id is None else batch | documents(batch["input_ids"], self._end_id)


class SyntheticSequences(ExampleSource):
    """Random token ids."""

    def __init__(self, split: str, sizes: Sizes, seed: int):
        self._vocab_size, length, _ = sizes
        super().__init__(SYNTHETIC_EXAMPLES[split], length, dict.fromkeys(_NAMES, length))
        self._key = stream_key(seed, f"synthetic {split}")

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples; `order` is not used."""
        draws = random_block(self._key, first_sample, tf.constant(count), self.max_seq_length + 1)
        return _inputs_and_labels(tf.minimum(tf.cast(draws * self._vocab_size, tf.int32), self._vocab_size - 1))


def _inputs_and_labels(ids: tf.Tensor) -> Batch:
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def documents(ids: tf.Tensor, end_id: int) -> Batch:
    """Returns the features sequence_ids and position_ids of rows of tokens, int32 [n, S] with a static S."""
    places = tf.range(ids.shape[1])
    begins = latest = tf.where(ids == end_id, places, 0)
    step = 1
    while step < ids.shape[1]:  # The running maximum: each round doubles how far back it looks.
        latest = tf.maximum(latest, tf.pad(latest[:, :-step], [[0, 0], [step, 0]]))
        step *= 2
    return {"sequence_ids": 1 + tf.cumsum(tf.cast(begins > 0, tf.int32), axis=1), "position_ids": places - latest}
