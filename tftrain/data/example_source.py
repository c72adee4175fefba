"""Examples by number: the interface of all sources, and what those that read records have in common.

A source builds the TensorFlow graph of a batch of consecutive global samples. The caller maps samples to examples.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tftrain.data.example import canonical
from tftrain.data.mixture import Mixture
from tftrain.data.order import example_ids
from tftrain.data.records import RecordSet

SYNTHETIC_EXAMPLES = {"train": 1 << 20, "eval": 1 << 10}
Batch = dict[str, tf.Tensor]
Order = Callable[[np.ndarray], np.ndarray]


class ExampleSource:
    """Examples of one split, by number.

    Attributes:
        num_examples: number of samples of the split: of examples, or of rows in which examples are packed.
        real_examples: number of the examples themselves.
        max_seq_length: S, tokens of an example, including padding.
        widths: number of elements of each feature of an example; None: the feature is one number.
        weights: names of the features that weight predictions, which are 0 in an example that only fills a batch.
        mixture: tells which examples are of which source, if there are several.
        is_remote: whether examples may be at an address, so that `batch` waits for a server.
    """

    weights: tuple[str, ...] = ()
    mixture: Mixture | None = None
    is_remote: bool = False

    def __init__(self, num_examples: int, max_seq_length: int, widths: Mapping[str, int | None]):
        self.num_examples = self.real_examples = num_examples
        self.max_seq_length, self.widths = max_seq_length, widths

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples: the features in `widths`, int32 [n, width] or [n], float32 if weights.

        Args:
            first_sample: int64 scalar, the global number of the first sample.
            order: maps int64 [n] sample numbers to int64 [n] example numbers.

        Raises:
            tf.errors.OpError: when the graph runs on invalid data. `errors.data_error` extracts its DataError.
        """
        raise NotImplementedError

    def example_numbers(self, samples: np.ndarray, seed: int) -> np.ndarray:
        """Maps sample numbers of a run, int64 [n], to example numbers, int64 [n]."""
        if self.mixture:
            return self.mixture.example_numbers(samples, seed)
        return example_ids(samples, self.num_examples, seed)

    def lengths(self, examples: np.ndarray) -> np.ndarray:
        """Returns the tokens of examples without padding, given their numbers, both int64 [n]; raises DataError."""
        raise NotImplementedError

    def widths_at(self, length: int) -> Mapping[str, int | None]:
        """Returns `widths` of a batch whose examples have at most `length` tokens, without further padding."""
        raise NotImplementedError


class RecordSource(ExampleSource):
    """Examples in TFRecord files. Every token id must be below `id_limit`, the number of rows of the embedding."""

    def __init__(self, records: RecordSet, max_seq_length: int, widths: Mapping[str, int | None], id_limit: int):
        super().__init__(len(records), max_seq_length, widths)
        self._records, self._id_limit = records, id_limit
        self.is_remote = records.is_remote

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples."""

        def read(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            records = list(self._records.read_all(order(np.arange(first, first + count)).tolist()))
            return (
                np.array([canonical(payload, place) for place, payload in records], object),
                np.array([place.encode() for place, _ in records], object),
            )

        serialized, where = tf.numpy_function(read, [first_sample], [tf.string, tf.string])
        serialized.set_shape([count])
        where.set_shape([count])
        return self._features(serialized, where, first_sample)

    def _features(self, serialized: tf.Tensor, where: tf.Tensor, first_sample: tf.Tensor) -> Batch:
        raise NotImplementedError

    def _checks(self, where: tf.Tensor, rules: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
        """Returns assertions of rules, bool [n, ...] by the message, which names the place of the first bad record."""
        checks = []
        for fault, good in rules.items():
            good = tf.reduce_all(tf.reshape(good, [tf.shape(where)[0], -1]), 1)
            first = tf.gather(where, tf.argmin(tf.cast(good, tf.int32)))
            message = tf.strings.join(["DataError: ", first, ": ", fault, "\n"])
            checks.append(tf.debugging.Assert(tf.reduce_all(good), [message]))
        return checks

    def _ids_fit(self, *ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the rule of token ids, int64 [n, ...], before the cast to int32, which would turn 2^32 + 5 into 5."""
        fault = f"a token id is negative or too large; expected ids below --vocab_size={self._id_limit}"
        return {fault: tf.concat([(part >= 0) & (part < self._id_limit) for part in ids], 1)}
