"""Sources of examples: prepared records, records in the standard BERT format, and synthetic data.

A source builds the TensorFlow graph of a batch of consecutive global samples. The caller maps samples to examples.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tftrain.config import DataConfig
from tftrain.data.errors import DataError
from tftrain.data.example import canonical
from tftrain.data.gzip_records import uncompressed_copies
from tftrain.data.manifest import Manifest, read_manifest
from tftrain.data.masking import Masking, random_block, stream_key
from tftrain.data.preflight import SEGMENTS, manifest_predictions, standard_sizes
from tftrain.data.records import RecordSet, match_files
from tftrain.data.vocabulary import read_vocabulary
from tftrain.data_sizes import synthetic

_SYNTHETIC_EXAMPLES = {"train": 1 << 20, "eval": 1 << 10}
Batch = dict[str, tf.Tensor]
Order = Callable[[np.ndarray], np.ndarray]


class ExampleSource:
    """Examples of one split, by number.

    Attributes:
        num_examples: number of examples of the split.
        max_seq_length: S, tokens of an example, including padding.
        max_predictions_per_seq: P, maximum number of masked tokens of an example.
    """

    def __init__(self, num_examples: int, max_seq_length: int, max_predictions_per_seq: int):
        self.num_examples = num_examples
        self.max_seq_length, self.max_predictions_per_seq = max_seq_length, max_predictions_per_seq

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples.

        Args:
            first_sample: int64 scalar, the global number of the first sample.
            count: n, the number of samples.
            order: maps int64 [n] sample numbers to int64 [n] example numbers.

        Returns:
            input_ids, input_mask and segment_ids int32 [n, S]; masked_lm_positions and masked_lm_ids int32 [n, P];
            masked_lm_weights float32 [n, P]; next_sentence_labels int32 [n] (1: the second segment is random).

        Raises:
            tf.errors.OpError: when the graph runs on invalid data. `errors.data_error` extracts its DataError.
        """
        raise NotImplementedError


class _RecordSource(ExampleSource):
    """Examples in TFRecord files."""

    def __init__(self, records: RecordSet, max_seq_length: int, max_predictions_per_seq: int, id_limit: int):
        """Every token id must be below `id_limit`, the number of rows of the embedding."""
        super().__init__(len(records), max_seq_length, max_predictions_per_seq)
        self._records, self._id_limit = records, id_limit

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples, as `ExampleSource.batch`."""

        def read(first):
            numbers = order(np.arange(first, first + count)).tolist()
            places = [self._records.place(number) for number in numbers]
            read = map(self._records.read, numbers)
            return (
                np.array([canonical(payload, place) for payload, place in zip(read, places, strict=True)], object),
                np.array([place.encode() for place in places], object),
            )

        serialized, where = tf.numpy_function(read, [first_sample], [tf.string, tf.string])
        serialized.set_shape([count])
        where.set_shape([count])
        return self._features(serialized, where, first_sample)

    def _features(self, serialized: tf.Tensor, where: tf.Tensor, first_sample: tf.Tensor) -> Batch:
        raise NotImplementedError

    def _check(self, good: tf.Tensor, where: tf.Tensor, expected: str) -> tf.Operation:
        """Asserts that all records are `good` (bool [n]). The message names the place of the first one that is not."""
        place = tf.gather(where, tf.argmin(tf.cast(good, tf.int32)))
        return tf.debugging.Assert(tf.reduce_all(good), [tf.strings.join(["DataError: ", place, ": ", expected, "\n"])])

    def _ids_fit(self, where: tf.Tensor, *ids: tf.Tensor) -> tf.Operation:
        """Checks token ids, int64 [n, ...], before the cast to int32, which would turn 2^32 + 5 into 5."""
        fit = [tf.reduce_all((part >= 0) & (part < self._id_limit), 1) for part in ids]
        return self._check(
            tf.reduce_all(fit, 0),
            where,
            f"a token id is negative or too large; expected ids below --vocab_size={self._id_limit}",
        )

    def _labels_fit(self, where: tf.Tensor, labels: tf.Tensor) -> tf.Operation:
        """Checks next_sentence_labels, int64 [n]."""
        return self._check(
            (labels == 0) | (labels == 1), where, "next_sentence_labels is neither 0 nor 1; expected one of them"
        )


class DynamicSource(_RecordSource):
    """Prepared, unmasked pairs. They are masked when a batch is read."""

    def __init__(self, records: RecordSet, masking: Masking, id_limit: int):
        super().__init__(records, masking.max_seq_length, masking.max_predictions_per_seq, id_limit)
        self._masking = masking

    def _features(self, serialized, where, first_sample):
        parsed = tf.io.parse_example(
            serialized,
            {
                "input_ids": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
                "second_segment_start": tf.io.FixedLenFeature([], tf.int64),
                "next_sentence_labels": tf.io.FixedLenFeature([], tf.int64),
            },
            example_names=where,
        )
        tokens, start = parsed["input_ids"], parsed["second_segment_start"]
        lengths = tokens.row_lengths()
        fits = self._check(
            (lengths > 0) & (lengths <= self.max_seq_length),
            where,
            f"the record has no tokens or more than max_seq_length={self.max_seq_length}",
        )
        with tf.control_dependencies([fits]):
            # Padded after the check, because every row becomes as long as the longest record.
            dense = tokens.with_flat_values(tf.identity(tokens.flat_values)).to_tensor()
        checks = [
            self._ids_fit(where, dense),
            self._labels_fit(where, parsed["next_sentence_labels"]),
            self._check(
                (start >= 0) & (start <= lengths), where, "second_segment_start is not a place in the record's tokens"
            ),
        ]
        with tf.control_dependencies(checks):
            tokens = tokens.with_flat_values(tf.cast(tokens.flat_values, tf.int32))
        position = tf.range(self.max_seq_length, dtype=tf.int64)[None, :]
        within = position < lengths[:, None]
        second = within & (position >= start[:, None])
        return self._masking(tokens, first_sample) | {
            "input_mask": tf.cast(within, tf.int32),
            "segment_ids": tf.cast(second, tf.int32),
            "next_sentence_labels": tf.cast(parsed["next_sentence_labels"], tf.int32),
        }


class StaticSource(_RecordSource):
    """Records in the standard BERT pre-training format, which contain the masks."""

    def _features(self, serialized, where, first_sample):
        length, slots = self.max_seq_length, self.max_predictions_per_seq
        shapes = {
            "input_ids": [length],
            "input_mask": [length],
            "segment_ids": [length],
            "masked_lm_positions": [slots],
            "masked_lm_ids": [slots],
            "next_sentence_labels": [1],
        }
        features = {name: tf.io.FixedLenFeature(shape, tf.int64) for name, shape in shapes.items()}
        features["masked_lm_weights"] = tf.io.FixedLenFeature([slots], tf.float32)
        parsed = tf.io.parse_example(serialized, features, example_names=where)
        positions = parsed["masked_lm_positions"]
        within = self._check(
            tf.reduce_all((positions >= 0) & (positions < length), 1),
            where,
            f"a masked position is outside the sequence; expected positions below {length}",
        )
        segments, mask, weights = parsed["segment_ids"], parsed["input_mask"], parsed["masked_lm_weights"]
        checks = [
            within,
            self._ids_fit(where, parsed["input_ids"], parsed["masked_lm_ids"]),
            self._labels_fit(where, parsed["next_sentence_labels"][:, 0]),
            self._check(
                tf.reduce_all((segments >= 0) & (segments < SEGMENTS), 1),
                where,
                f"a segment id is negative or too large; expected ids below {SEGMENTS}",
            ),
            self._check(tf.reduce_all((mask == 0) | (mask == 1), 1), where, "input_mask is neither 0 nor 1 somewhere"),
            # The comparison is false for NaN too.
            self._check(
                tf.reduce_all((weights >= 0) & (weights <= 1), 1),
                where,
                "one of masked_lm_weights is no number from 0 to 1; expected 1 for a masked token and 0 for none",
            ),
        ]
        with tf.control_dependencies(checks):
            batch = {name: tf.cast(parsed[name], tf.int32) for name in shapes}
            batch["masked_lm_weights"] = tf.identity(weights)
        batch["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
        return batch


class SyntheticSource(ExampleSource):
    """Random token ids in sequences of full length with P predictions each: the largest work for these sizes."""

    def __init__(self, split: str, max_seq_length: int, max_predictions_per_seq: int, vocab_size: int, seed: int):
        super().__init__(_SYNTHETIC_EXAMPLES[split], max_seq_length, max_predictions_per_seq)
        self._vocab_size = vocab_size
        self._key = stream_key(seed, f"synthetic {split}")

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples, as `ExampleSource.batch`. `order` is not used."""
        length, slots = self.max_seq_length, self.max_predictions_per_seq
        draws = random_block(self._key, first_sample, tf.constant(count), length + slots + 1)

        def ids(part):
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


def open_source(data: DataConfig, split: str, vocab_size: int, seed: int) -> ExampleSource:
    """Opens the source of examples that the flags select.

    Args:
        data: data_dir, train_files and eval_files, or synthetic_data select the source.
        split: "train" or "eval".
        vocab_size: rows of the embedding. Reading a record with a token id of vocab_size or more is an error.
        seed: seed of the masks.

    Raises:
        DataError: files are missing or damaged, or the split is empty.
    """
    if data.synthetic_data:
        _, length, slots = synthetic(data, vocab_size)
        return SyntheticSource(split, length, slots, vocab_size, seed)
    if data.data_dir:
        return _open_prepared(data, split, vocab_size, seed)
    pattern, flag = (data.train_files, "train_files") if split == "train" else (data.eval_files, "eval_files")
    if pattern is None:
        raise DataError(f"--{flag} is not given; expected a glob of TFRecords for the {split} split")
    paths = match_files(pattern, flag)
    sizes = standard_sizes(paths)
    return StaticSource(RecordSet(*uncompressed_copies(paths)), *sizes, vocab_size)


def _open_prepared(data: DataConfig, split: str, vocab_size: int, seed: int) -> ExampleSource:
    manifest = read_manifest(data.data_dir)
    shards = manifest.splits[split]
    records = RecordSet([manifest.path(shard.file) for shard in shards])
    for shard, count in zip(shards, records.counts, strict=True):
        if count != shard.examples:
            raise DataError(
                f"{manifest.path(shard.file)}: it holds {count} records, the manifest says {shard.examples}; "
                "remove its .index, or prepare the data again"
            )
    if not len(records):
        raise DataError(
            f"{manifest.folder}: its {split} split is empty; prepare it from more text, or with a larger "
            "--eval_fraction"
        )
    if manifest.masking == "static":
        return StaticSource(records, manifest.max_seq_length, manifest.max_predictions_per_seq, vocab_size)
    return DynamicSource(records, _masking(manifest, data, split, seed), vocab_size)


def _masking(manifest: Manifest, data: DataConfig, split: str, seed: int) -> Masking:
    vocabulary = read_vocabulary(manifest.path(manifest.vocab_file), manifest.tokenizer_type)
    return Masking(
        vocabulary,
        manifest.max_seq_length,
        manifest_predictions(manifest, data),
        data.masked_lm_prob,
        data.whole_word_masking,
        stream_key(seed, f"masking {split}"),
    )
