"""tftrain's own step for table `peers`, as `tftrain.run` makes it from its flags, on batches that stay the same."""

import shlex
from collections.abc import Callable
from typing import Any

from tftrain.bench.config import run_config
from tftrain.bench.peers import task
from tftrain.bench.worker import serve
from tftrain.config.train import TrainConfig


def build(settings: dict[str, Any]) -> Callable[[int], list[float]]:
    """Builds the step; settings hold task, batches, precision, threads, flags, and extra_flags, which win.

    Returns a function that takes a number of steps and returns the seconds of each.
    """
    flags = f"{settings['flags']} {settings['extra_flags']}"
    config = configuration(settings["precision"], settings["threads"], flags, task.size(settings))
    return task.turns(make_step(config), task.batches(settings, config.model.vocab_size))


def configuration(precision: str, threads: int, extra_flags: str, size: task.PeerTask) -> TrainConfig:
    """Returns the configuration of a task's model; all other flags have the program's defaults, or `extra_flags`.

    Raises a ConfigError if a flag is wrong.
    """
    flags = (
        *("--synthetic_data", f"--vocab_size={task.VOCAB}", "--output_dir=unused", f"--model_family={size.family}"),
        *(f"--{name}={value}" for name, value in task.SIZES[size.family].items()),
        f"--max_position_embeddings={max(512, size.length)}",
        *(f"--micro_batch_size={size.rows}", f"--max_seq_length={size.length}"),
        *(f"--max_predictions_per_seq={size.predictions}", f"--precision={precision}", f"--cpu_threads={threads}"),
    )
    return run_config([*flags, *shlex.split(extra_flags)])


def make_step(config: TrainConfig) -> Callable[[task.Batch], float]:
    """Builds model, optimizer and update; returns a function that does one update with a batch and returns its loss."""
    import tensorflow as tf

    from tftrain.parallel.launcher import Launch
    from tftrain.parallel.start import start
    from tftrain.state.new_run import new_run
    from tftrain.train.step import TrainStep

    run = new_run(config, start(Launch(), config.compute.cpu_threads))
    step = TrainStep(run)

    def update(batch: task.Batch) -> float:
        inputs = {name: tf.constant(value) for name, value in batch.items()}
        return run.task.mean_values(step(inputs).sums.numpy().tolist())["loss"]

    return update


if __name__ == "__main__":
    serve(build)
