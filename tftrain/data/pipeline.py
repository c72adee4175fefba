"""Batches of a run, as tf.data datasets.

The position of the training data is one integer, the global number of the next sample; a rank's part of a global batch
is a range of it. Nothing here is drawn at random: the order (`order`) and the masks (`masking`) are functions of the
seed and the sample's number, so the batches do not depend on the number of ranks, and a resumed run goes on exactly.
"""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tftrain.config import DataConfig
from tftrain.data.order import example_ids
from tftrain.data.source import Batch, ExampleSource, open_source
from tftrain.ramp import Ramp

__all__ = ["eval_batches", "open_source", "ramped_batches", "train_batches"]


def train_batches(
    source: ExampleSource, data: DataConfig, seed: int, first_sample: int, global_batch_size: int, start: int, stop: int
) -> tf.data.Dataset:
    """Returns this rank's part of all global batches from a sample on, without end.

    Args:
        source: the examples, from `open_source`.
        data: its data_readers are the threads that read and decode.
        seed: of the order.
        first_sample: consumed samples, the global number of the first sample.
        global_batch_size: samples of one update over all ranks.
        start, stop: this rank's samples of each global batch; n = stop - start.

    Returns:
        A dataset whose element i holds the global samples first_sample + i * global_batch_size + [start, stop): the
        features of `ExampleSource.batch`, and example_weights float32 [n], all 1.
    """

    def order(samples: np.ndarray) -> np.ndarray:
        return example_ids(samples, source.num_examples, seed)

    def batch(number: tf.Tensor) -> Batch:
        first = first_sample + number * global_batch_size + start
        features = source.batch(first, stop - start, order)
        return _static(source, features | {"example_weights": tf.ones([stop - start])}, stop - start)

    return _dataset(tf.data.Dataset.counter(), batch, data)


def ramped_batches(
    source: ExampleSource,
    data: DataConfig,
    seed: int,
    first_sample: int,
    ramp: Ramp,
    share: Callable[[int], tuple[int, int]],
    steps: int,
) -> Iterator[Batch]:
    """Yields this rank's part of so many global batches whose size may grow.

    Args:
        source, data, seed: as for `train_batches`.
        first_sample: consumed samples, the global number of the first sample; the first batch's size follows from it.
        ramp: the batch sizes.
        share: from a global batch's size to this rank's samples of it, [start, stop).
        steps: how many batches.
    """
    stages = ramp.stages(first_sample)
    for stage, end in zip(stages, [*(stage.first_step for stage in stages[1:]), steps], strict=True):
        size, count = stage.batch_size, min(end, steps) - stage.first_step
        if count > 0:
            yield from train_batches(source, data, seed, stage.first_sample, size, *share(size)).take(count)


def eval_batches(
    source: ExampleSource,
    data: DataConfig,
    global_batch_size: int,
    start: int,
    stop: int,
    max_batches: int = 0,
) -> tf.data.Dataset:
    """Returns this rank's part of one pass over the held-out examples, in the order of the files.

    Every rank has equally many batches. The last ones are filled up with examples of weight 0.

    Args:
        source: the examples, opened with split "eval"; their masks are the same in every pass.
        data: its data_readers are the threads that read and decode.
        global_batch_size: examples of one batch over all ranks.
        start, stop: this rank's examples of each batch; n = stop - start.
        max_batches: stop after so many; 0 for all examples.

    Returns:
        A dataset of the features of `ExampleSource.batch`, and example_weights float32 [n]: 0 where an example only
        fills a batch up; masked_lm_weights are 0 there too.
    """
    total = source.num_examples
    batches = -(-total // global_batch_size)
    if max_batches:
        batches = min(batches, max_batches)

    def order(samples: np.ndarray) -> np.ndarray:
        return np.minimum(samples, total - 1)

    def batch(number: tf.Tensor) -> Batch:
        first = number * global_batch_size + start
        features = source.batch(first, stop - start, order)
        weights = tf.cast(first + tf.range(stop - start, dtype=tf.int64) < total, tf.float32)
        features["masked_lm_weights"] *= weights[:, None]
        return _static(source, features | {"example_weights": weights}, stop - start)

    return _dataset(tf.data.Dataset.range(batches), batch, data)


def _dataset(numbers: tf.data.Dataset, batch, data: DataConfig) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.threading.private_threadpool_size = data.data_readers
    options.threading.max_intra_op_parallelism = 1
    batch = tf.autograph.experimental.do_not_convert(batch)
    mapped = numbers.map(batch, num_parallel_calls=data.data_readers, deterministic=True)
    return mapped.prefetch(2 * data.data_readers).with_options(options)


def _static(source: ExampleSource, features: Batch, count: int) -> Batch:
    """Sets the shapes, which XLA needs to know."""
    widths = {
        "input_ids": source.max_seq_length,
        "input_mask": source.max_seq_length,
        "segment_ids": source.max_seq_length,
        "masked_lm_positions": source.max_predictions_per_seq,
        "masked_lm_ids": source.max_predictions_per_seq,
        "masked_lm_weights": source.max_predictions_per_seq,
    }
    return {
        name: tf.ensure_shape(value, [count, widths[name]] if name in widths else [count])
        for name, value in features.items()
    }
