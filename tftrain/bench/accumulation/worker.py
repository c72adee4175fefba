"""The process that makes the gradients of a small model's micro-batches and adds them up in each kind of buffer."""

import shlex
from collections.abc import Callable, Iterator
from typing import Any

from tftrain.bench.config import run_config
from tftrain.bench.worker import serve
from tftrain.config.train import TrainConfig


def build(settings: dict[str, Any]) -> Callable[[list[list[Any]]], list[list[list[Any]]]]:
    """Builds model and data.

    Args:
        settings: the tftrain.run `flags` of the model, in one string, and `counts`, the micro-batches of each sum.

    Returns:
        A function that takes pairs of dtype and loss scale and returns a list of `curve.Point`s for each pair.
    """
    config = run_config(shlex.split(settings["flags"]))

    def answer(pairs):
        from tftrain.bench.accumulation.curve import Buffer, errors

        counts = settings["counts"]
        return errors(gradients(config, max(counts)), counts, [Buffer(*pair) for pair in pairs])

    return answer


def gradients(config: TrainConfig, count: int) -> Iterator[Any]:
    """Yields the gradient of the mean loss of one micro-batch after the other, all variables in one float32 vector.

    Args:
        config: resolved, its vocabulary and lengths stated; the model has its initial weights throughout.
        count: micro-batches.
    """
    import tensorflow as tf

    from tftrain.input import pipeline
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


if __name__ == "__main__":
    serve(build)
