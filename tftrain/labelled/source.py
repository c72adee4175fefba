"""Labelled examples in memory as a source of batches."""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tftrain.input.example_source import Batch, ExampleSource, Order

Rows = Callable[[np.ndarray], Mapping[str, np.ndarray]]


class LabelledSource(ExampleSource):
    """Examples whose features a function makes from their numbers.

    Attributes:
        examples: what the features come from, for a scorer.
    """

    def __init__(self, examples: list, max_seq_length: int, widths: Mapping[str, int | None], rows: Rows):
        """Takes the examples.

        Args:
            examples: one for each number.
            max_seq_length: S, tokens of a sequence.
            widths: see `ExampleSource`.
            rows: maps int64 [n] example numbers to the features in `widths`, each [n, width] or [n].
        """
        super().__init__(len(examples), max_seq_length, widths)
        self.examples, self._rows = examples, rows
        made = rows(np.zeros([1], np.int64))
        self._dtypes = {name: made[name].dtype for name in widths}

    def batch(self, first_sample: tf.Tensor, count: int, order: Order) -> Batch:
        """Returns `count` consecutive samples, as `ExampleSource.batch`; the dtypes are those of the rows."""

        def read(first):
            made = self._rows(order(np.arange(first, first + count)))
            return [made[name] for name in self.widths]

        return dict(zip(self.widths, tf.numpy_function(read, [first_sample], list(self._dtypes.values())), strict=True))
