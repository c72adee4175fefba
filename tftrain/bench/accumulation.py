"""Table `accumulation`: how much of a gradient is lost when micro-batches add up in each number format.

There are two errors: each gradient is rounded to the buffer's format, and the sum is rounded after each addition by up
to half a unit in its last place, however small the summand. The second grows with the number of micro-batches.

All rows accumulate the same gradients of a small model in one process. `--steps` has no effect: a second run gives the
same figures.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tftrain.bench import host
from tftrain.bench.config import BenchConfig, run_config
from tftrain.bench.table import Outcome, Record, Row, Say, Table, columns
from tftrain.bench.worker import Worker, serve
from tftrain.config.train import TrainConfig
from tftrain.host.units import DTYPES
from tftrain.page.bars import Panel, Series

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FLAGS = (
    "--synthetic_data --num_hidden_layers=2 --hidden_size=128 --num_attention_heads=2 --vocab_size=1009 "
    "--max_seq_length=64 --max_predictions_per_seq=10 --micro_batch_size=2 --output_dir=unused"
)
# fp32 and bf16 have the same range of exponents: a power of two changes nothing. tftrain.run starts with 2^15.
BUFFERS = (("fp32", 1), ("bf16", 1), ("fp16", 1), ("fp16", 2**15), ("fp16", 2**20))


class Buffer(NamedTuple):
    """A float32, bfloat16 or float16 buffer of gradients, with the factor on them before rounding, a power of two."""

    dtype: str
    loss_scale: float


def measure(group: list[Row], config: BenchConfig, say: Say) -> Iterator[Outcome]:
    """Adds up the same gradients for every row."""
    say(f"{max(COUNTS)} micro-batches, once")
    flags = f"{FLAGS} --cpu_threads={host.threads(config.cpu_threads)} {config.extra_flags}"
    buffers = [[DTYPES[row.settings["dtype"]], float(row.settings["loss_scale"])] for row in group]
    with Worker("tftrain.bench.accumulation", {"flags": flags, "counts": COUNTS}) as worker:
        answers = worker.ask(buffers)
    for row, points in zip(group, answers, strict=True):
        yield Outcome(row.name, [record(row, point) for point in points])


def record(row: Row, point: Record) -> Record:
    """Returns a line of the table; errors have two significant digits; an overflow has none."""
    error = point["relative_error"]
    return {**row.settings, **point, "relative_error": None if error is None else float(f"{error:.1e}")}


ACCUMULATION = Table(
    "accumulation",
    "the error of gradients that were added up over micro-batches, by the buffer's format, against fp64",
    columns("micro_batches:0 dtype relative_error loss_scale:0 vanished:4"),
    tuple(
        Row(f"{dtype}/{scale}" if dtype == "fp16" else dtype, "all", {"dtype": dtype, "loss_scale": scale})
        for dtype, scale in BUFFERS
    ),
    measure,
    panels=(Panel("Relative error of the sum", (Series("relative_error"),), ".1e"),),
    labels=("dtype", "micro_batches", "loss_scale"),
    chart_note="A bar is the error of a sum of that many micro-batches, and its label is the same number.",
)


def build(settings: dict[str, Any]) -> Callable[[list[list[Any]]], list[list[Record]]]:
    """Prepares the measuring process: a function from pairs of dtype and loss scale to the records of each.

    Settings are the tftrain.run `flags` of the model, in one string, and `counts`, the micro-batches of each sum.
    """
    config, counts = run_config(shlex.split(settings["flags"])), settings["counts"]
    return lambda pairs: errors(gradients(config, max(counts)), counts, [Buffer(*pair) for pair in pairs])


def gradients(config: TrainConfig, count: int) -> Iterator[Any]:
    """Yields the gradients of the mean losses of `count` micro-batches, all variables in one float32 vector.

    The model has its initial weights throughout; `config` is resolved and states vocabulary and lengths.
    """
    import tensorflow as tf

    from tftrain.data import pipeline
    from tftrain.ops.dropout import DropoutKey
    from tftrain.parallel.launcher import Launch
    from tftrain.parallel.start import start
    from tftrain.tasks import make_task

    task = make_task(config, start(Launch(), config.compute.cpu_threads))
    size, seed = config.batch.micro_batch_size, config.run.seed
    source = task.open_source(config.data, "train", seed)
    variables = list(task.model.named_variables().values())

    @tf.function(autograph=False)
    def gradient(batch, first_sample):
        with tf.GradientTape() as tape:
            key = DropoutKey(seed, tf.constant(0, tf.int64), first_sample)
            loss = task.loss(task.compute(batch, key), task.loss_weights(batch))
        return tf.concat([tf.reshape(each, [-1]) for each in tape.gradient(loss, variables)], 0)

    batches = pipeline.train_batches(source, config.data, seed, 0, size, 0, size)
    for number, batch in enumerate(batches.take(count)):
        yield gradient(batch, tf.constant(number * size, tf.int64))


def errors(gradients: Iterable[Any], counts: Sequence[int], buffers: Sequence[Buffer]) -> list[list[Record]]:
    """Accumulates gradients as `tftrain.train.step` does, and compares with the sum in float64.

    The gradient of one of k micro-batches is 1 / k of that of its mean loss, times the loss scale. It is rounded to the
    buffer's dtype and added to the buffer, which is rounded again.

    Args:
        gradients: of one micro-batch after the other, each of its own mean loss, float32 [n]; at least max(counts).
        counts: micro-batches of each sum, powers of two (so that 1 / k rounds nothing).
        buffers: each gets a record for each count.

    Returns:
        Records of micro_batches; relative_error, the norm of the error over that of the sum, None if the buffer is not
        finite; and vanished, the share of the nonzero elements of the sum that are 0 in the buffer.
    """
    import tensorflow as tf

    counts = sorted(counts)
    exact, sums = {}, {}
    for number, gradient in zip(range(counts[-1]), gradients, strict=False):
        if number == 0:
            exact = {count: tf.zeros(gradient.shape, tf.float64) for count in counts}
            sums = {(buffer, count): tf.zeros(gradient.shape, buffer.dtype) for buffer in buffers for count in counts}
        for count in (count for count in counts if number < count):
            exact[count] += tf.cast(gradient, tf.float64) / count
            for buffer in buffers:
                share = gradient * (buffer.loss_scale / count)
                sums[buffer, count] += tf.cast(share, buffer.dtype)

    def point(buffer: Buffer, count: int) -> Record:
        total, there = sums[buffer, count], exact[count] != 0
        vanished = tf.math.count_nonzero(there & (total == 0)) / tf.math.count_nonzero(there)
        error = tf.norm(tf.cast(total, tf.float64) / buffer.loss_scale - exact[count]) / tf.norm(exact[count])
        finite = tf.reduce_all(tf.math.is_finite(total))
        relative_error = float(error) if finite else None
        return {"micro_batches": count, "relative_error": relative_error, "vanished": float(vanished)}

    return [[point(buffer, count) for count in counts] for buffer in buffers]


if __name__ == "__main__":
    serve(build)
