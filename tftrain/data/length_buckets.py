"""Global batches of examples of similar length, which are cut to the smallest of a few lengths that holds them.

Batches of the seeded order (`order`) nearly all have a long example. So the samples of a window, `WINDOW` global
batches of that order, change places: they are sorted by the length that holds them, and the batches that result take
their places in a seeded random order. A window ends where the epoch ends, so every example still occurs once in an
epoch. The arrangement of a window depends on the seed, the data, the lengths and the size of a global batch. So every
rank arranges alike, and a run resumes from one integer.
"""

import functools
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.data.example_source import Batch, ExampleSource
from tftrain.data.left_out import NOTHING, LeftOut
from tftrain.data.order import derive_key

WINDOW = 64  # global batches; their examples are read twice
_KEPT = 3  # windows: threads read ahead


class _Window(NamedTuple):
    """Samples begin, begin + 1, ...: their examples, and the number of the smallest length that holds each."""

    begin: int
    examples: np.ndarray
    buckets: np.ndarray


class LengthBuckets:
    """Arranges the examples of a source in global batches of `batch_size`, and cuts them to one of `lengths`.

    The lengths are ascending; the last one is that of the source. The run's windows are left out of what is arranged.
    """

    def __init__(
        self, source: ExampleSource, seed: int, lengths: Sequence[int], batch_size: int, left_out: LeftOut = NOTHING
    ):
        self._source, self._seed, self._batch_size, self._left_out = source, seed, batch_size, left_out
        self._lengths = np.asarray(lengths, np.int64)
        self._arranged, self._lock = functools.lru_cache(_KEPT)(self._arrange), Lock()

    def examples(self, samples: np.ndarray) -> np.ndarray:
        """Maps consecutive samples, int64 [n], to examples, as `ExampleSource.batch` wants it."""
        return self._at(samples, "examples")

    def bucket(self, first_sample: int) -> np.int64:
        """Returns the number of the smallest length that holds the global batch that begins with a sample."""
        return self._at(np.arange(first_sample, first_sample + self._batch_size), "buckets").max()

    def cut(self, batch: Batch, first_sample: tf.Tensor) -> Batch:
        """Returns a rank's part of a global batch with the widths of `ExampleSource.widths_at`, with less padding.

        Args:
            batch: features of the source's width.
            first_sample: int64 scalar, the first one of the global batch.
        """
        number = tf.ensure_shape(tf.numpy_function(self.bucket, [first_sample], tf.int64), [])
        widths = [self._source.widths_at(int(length)) for length in self._lengths]
        shortened = dict(batch)
        for name, whole in self._source.widths.items():
            of_lengths = [width[name] for width in widths]
            if whole is not None and min(of_lengths) < whole:
                shortened[name] = batch[name][:, : tf.gather(tf.constant(of_lengths), number)]
        return shortened

    def _at(self, samples: np.ndarray, name: str) -> np.ndarray:
        """Returns what windows have by this name for consecutive samples, int64 [n]."""
        positions, values = self._left_out.positions(samples), []
        begin, end = int(positions[0]), int(positions[-1]) + 1
        while begin < end:
            window = self._window(begin)
            values.append(getattr(window, name)[begin - window.begin : end - window.begin])
            begin = window.begin + len(window.examples)
        return np.concatenate(values)[positions - positions[0]]

    def _window(self, sample: int) -> _Window:
        """Returns the window of a sample, arranged once for all threads."""
        size, epoch = WINDOW * self._batch_size, self._source.num_examples
        begin = max(sample // size * size, sample // epoch * epoch)
        end = min((sample // size + 1) * size, (sample // epoch + 1) * epoch)
        with self._lock:
            return self._arranged(begin, end)

    def _arrange(self, begin: int, end: int) -> _Window:
        examples = self._source.example_numbers(np.arange(begin, end), self._seed)
        buckets = np.searchsorted(self._lengths[:-1], self._source.lengths(examples))
        by_length = np.argsort(buckets, kind="stable")
        # At the ends of an epoch, a batch has samples of two windows.
        first = -(-begin // self._batch_size) * self._batch_size
        starts = np.unique([begin, *range(first, end, self._batch_size)])
        sizes = np.diff([*starts, end])
        order = np.argsort(derive_key(np.full_like(starts, self._seed), starts))
        runs = np.split(by_length, np.cumsum(sizes[order])[:-1])
        places = np.concatenate([run for _, run in sorted(zip(order.tolist(), runs, strict=True), key=lambda x: x[0])])
        return _Window(begin, examples[places], buckets[places])
