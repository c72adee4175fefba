"""tftrain's own training step, as `tftrain.run` makes it from its flags, on batches that stay the same.

Tables `peers` and `profile` both measure it.
"""

import shlex
from collections.abc import Callable, Sequence

from tftrain.bench.config import run_config
from tftrain.bench.peers import task, text
from tftrain.config.train import TrainConfig

FLAGS = (
    "--synthetic_data",
    f"--vocab_size={task.VOCAB}",
    "--output_dir=unused",
)


def configuration(precision: str, threads: int, extra_flags: str, size: task.Task) -> TrainConfig:
    """Returns the configuration of BERT-base; all other flags have the program's defaults.

    Args:
        precision: fp32 or bf16.
        threads: TensorFlow's.
        extra_flags: more flags of tftrain.run, with blanks between; they win.
        size: of a batch.

    Raises:
        ConfigError: a flag is wrong.
    """
    sizes = (
        f"--micro_batch_size={size.rows}",
        f"--max_seq_length={size.length}",
        f"--max_predictions_per_seq={size.predictions}",
    )
    given = [*FLAGS, *sizes, f"--precision={precision}", f"--cpu_threads={threads}", *shlex.split(extra_flags)]
    return run_config(given)


def product_seconds(config: TrainConfig, batches: Sequence[task.Batch]) -> float:
    """Returns the seconds that the matrix products of one update take alone in this process, see `product_time`."""
    from tftrain.plan.workload import from_config
    from tftrain.report import product_time

    share = text.attending_pairs(batches) if "sequence_ids" in batches[0] else 1.0
    return product_time.measure(from_config(config, 1, gpu=False), share)


def make_step(config: TrainConfig, inter_op_threads: int | None = None) -> Callable[[task.Batch], float]:
    """Builds model, optimizer and update.

    Args:
        config: resolved.
        inter_op_threads: operations that may run at once; None: as many as in a run.

    Returns:
        A function that does one update with a batch and returns its loss.
    """
    import tensorflow as tf

    from tftrain.parallel.launcher import Launch
    from tftrain.parallel.start import start
    from tftrain.run_state import Run
    from tftrain.train.step import TrainStep

    mesh = start(Launch(), config.compute.cpu_threads)
    if inter_op_threads:
        tf.config.threading.set_inter_op_parallelism_threads(inter_op_threads)
    run = Run(config, mesh)
    step = TrainStep(run)

    def update(batch: task.Batch) -> float:
        inputs = {name: tf.constant(value) for name, value in batch.items()}
        return run.task.mean_values(step(inputs).sums.numpy().tolist())["loss"]

    return update
