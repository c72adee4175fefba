"""The input pipeline: batches as tf.data datasets.

The position in the training data is one integer, the global number of the next sample. Each rank reads a range of the
samples of a global batch. The order (`order`) and the masks (`masking`) are functions of the seed and the sample
number. So the batches do not depend on the number of ranks, and a resumed run reads the same samples.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tftrain.config import length_choice
from tftrain.config.data import DataConfig
from tftrain.config.ramp import Ramp
from tftrain.data.example_source import Batch, ExampleSource
from tftrain.data.left_out import NOTHING, LeftOut
from tftrain.data.length_buckets import LengthBuckets

AHEAD = 16  # batches that are read at once if their records are at an address
BYTES_AHEAD = 2**25  # the most that wait for their step, if they are more than one batch


def train_batches(
    source: ExampleSource,
    data: DataConfig,
    seed: int,
    first_sample: int,
    global_batch_size: int,
    start: int,
    stop: int,
    left_out: LeftOut = NOTHING,
) -> tf.data.Dataset:
    """Returns this rank's part of the global batches, as an infinite dataset.

    Element i holds the global samples first_sample + i * global_batch_size + [start, stop). It has the features of
    `ExampleSource.batch`; example_weights float32 [n], all 1, where n = stop - start; of a mixture, source int32 [n].

    Args:
        data: data_readers is the number of threads that read and decode; with seq_length_buckets, batches are arranged
            and cut as `length_buckets` says.
        first_sample: global number of the first sample, which is the number of consumed samples.
        global_batch_size: samples of one update over all ranks.
        start, stop: this rank's samples of each global batch.
        left_out: gives the positions of the samples in the order of the examples.
    """
    buckets = None
    if data.seq_length_buckets != length_choice.NONE:
        lengths = length_choice.read(data.seq_length_buckets, source.max_seq_length)
        buckets = LengthBuckets(source, seed, lengths, global_batch_size, left_out)

    block = source.mixture.block if source.mixture else 1

    def order(samples: np.ndarray) -> np.ndarray:
        offsets = (samples - first_sample) % block  # in a global batch that has one source
        begins = left_out.positions(samples - offsets)
        return source.example_numbers(-(-begins // block) * block + offsets, seed)

    def batch(number: tf.Tensor) -> Batch:
        first, count = first_sample + number * global_batch_size, stop - start
        examples = buckets.examples if buckets else order
        features = source.batch(first + start, count, examples) | {"example_weights": tf.ones([count])}
        if source.mixture:
            features["source"] = tf.numpy_function(
                lambda own: source.mixture.sources_of(examples(np.arange(own, own + count))), [first + start], tf.int32
            )
        features_of_batch = _static(source, features, count)
        return buckets.cut(features_of_batch, first) if buckets else features_of_batch

    return _dataset(tf.data.Dataset.counter(), batch, source, data, stop - start)


def ramped_batches(
    source: ExampleSource,
    data: DataConfig,
    seed: int,
    first_sample: int,
    ramp: Ramp,
    share: Callable[[int], tuple[int, int]],
    steps: int,
    left_out: LeftOut = NOTHING,
) -> Iterator[Batch]:
    """Yields this rank's part of `steps` global batches whose size follows a ramp, see `train_batches`.

    Args:
        first_sample: global number of the first sample, which determines the size of the first batch.
        share: maps the size of a global batch to this rank's samples, [start, stop).
    """
    stages = ramp.stages(first_sample)
    for stage, end in zip(stages, [*(stage.first_step for stage in stages[1:]), steps], strict=True):
        size, count = stage.batch_size, min(end, steps) - stage.first_step
        if count > 0:
            batches = train_batches(source, data, seed, stage.first_sample, size, *share(size), left_out)
            yield from batches.take(count)


def eval_batches(
    source: ExampleSource, data: DataConfig, global_batch_size: int, start: int, stop: int, parts: Sequence[range] = ()
) -> tf.data.Dataset:
    """Returns this rank's part of one pass over the held-out examples, in file order; their masks are always the same.

    Elements and arguments are as those of `train_batches`. Every rank has the same number of batches. The last batch of
    a part is filled up with examples of example_weights 0 and, if there are masks, masked_lm_weights 0.

    Args:
        source: the examples, opened with split "eval".
        parts: numbers of the rows to read, however batches divide them; each part begins a batch. By default all.
    """
    parts = parts or [range(source.num_examples)]
    bounds = [(row, part.stop) for part in parts for row in part[::global_batch_size]]

    def batch(number: tf.Tensor) -> Batch:
        begin, end = tf.unstack(tf.constant(bounds, tf.int64, [len(bounds), 2])[number])
        features = source.batch(begin + start, stop - start, lambda rows: np.minimum(rows, source.num_examples - 1))
        weights = tf.cast(begin + tf.range(start, stop, dtype=tf.int64) < end, tf.float32)
        for name in source.weights:
            features[name] *= weights[:, None]
        return _static(source, features | {"example_weights": weights}, stop - start)

    return _dataset(tf.data.Dataset.range(len(bounds)), batch, source, data, stop - start)


def _dataset(
    numbers: tf.data.Dataset, batch: Callable[[tf.Tensor], Batch], source: ExampleSource, data: DataConfig, count: int
) -> tf.data.Dataset:
    fit = max(1, BYTES_AHEAD // (4 * count * sum(width or 1 for width in source.widths.values())))
    # Threads that wait for a server need no core.
    readers = min(fit, max(data.data_readers, AHEAD) if source.is_remote else data.data_readers)
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    # They fuse kinds of datasets that are not here, and looking for them takes a third of an iterator's start.
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = readers
    options.threading.max_intra_op_parallelism = 1
    batch = tf.autograph.experimental.do_not_convert(batch)
    parallel = {"num_parallel_calls": readers, "deterministic": True} if readers > 1 else {}
    mapped = numbers.map(batch, **parallel)
    return mapped.prefetch(min(2 * data.data_readers, fit)).with_options(options)


def _static(source: ExampleSource, features: Batch, count: int) -> Batch:
    """Sets static shapes, which XLA needs."""
    return {
        name: tf.ensure_shape(value, [count] if source.widths.get(name) is None else [count, source.widths[name]])
        for name, value in features.items()
    }
