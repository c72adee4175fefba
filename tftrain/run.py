"""Trains or evaluates an encoder: `python -m tftrain.run --flagfile=configs/X.flags`, alone or under horovodrun.

Exit codes: 0 done, 1 the run failed (data, checkpoint, ranks), 2 wrong flags, 130 interrupted from the keyboard.
"""

import dataclasses
import os
import sys
import tempfile

from tftrain import flags, huge_pages
from tftrain.config import TrainConfig
from tftrain.data import preflight
from tftrain.fields import ConfigError, Problem
from tftrain.parallel.launcher import Launch, launch_from_environment

EXIT_FAILED = 1
LOW_MEMORY_XLA = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
EXIT_INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit code."""
    launch = launch_from_environment()
    try:
        config, problems = flags.read(TrainConfig, argv)
        if problems := all_problems(config, problems, launch):
            raise ConfigError(problems)
        config = with_sizes(config.resolve(launch.size), preflight.sizes(config))
    except ConfigError as error:
        flags.refuse("tftrain.run", error, launch.rank)

    gpu = os.path.exists("/dev/nvidiactl")
    if __name__ == "__main__" and config.compute.huge_pages and not gpu:
        huge_pages.restart()
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if config.compute.activation_checkpointing != "none":
        # XLA on the CPU starts what it can as early as it can, recomputation too, which then saves nothing.
        os.environ["XLA_FLAGS"] = f"{LOW_MEMORY_XLA} {os.environ.get('XLA_FLAGS', '')}"
    # Where there is no GPU, TensorFlow reports that as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if gpu else "3")
    # TensorFlow takes seconds to load: wrong flags were refused before this line.
    import tensorflow as tf

    from tftrain.checkpoint.errors import CheckpointError
    from tftrain.data.errors import DataError, data_error
    from tftrain.parallel import mesh
    from tftrain.train import agreed, loop

    try:
        ranks = mesh.start(launch, config.compute.cpu_threads, config.parallel.tensor_parallel_size)
        agreed.before_start(config, ranks)
        {"train": loop.train, "evaluate": loop.evaluate}[config.run.mode](config, ranks)
    except (DataError, CheckpointError, mesh.MeshError, OSError) as error:
        return failed(launch.rank, error)
    except tf.errors.OpError as error:
        # A record's fault reaches us wrapped in TensorFlow's own error; anything else deserves its traceback.
        if (cause := data_error(error)) is None:
            raise
        return failed(launch.rank, cause)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def all_problems(config: TrainConfig, misread: list[Problem], launch: Launch) -> list[Problem]:
    """Returns every reason not to start, with one entry for a flag at most from each check.

    Args:
        config: with the defaults in the place of flags that could not be read.
        misread: the problems of those flags.
        launch: this process's place; the output folder is the chief's affair.
    """
    problems = [*misread, *(p for p in config.problems(launch.size) if p.flag not in {m.flag for m in misread})]
    wrong = {problem.flag for problem in problems}
    # The data is looked at only where the flags that name it are sound.
    if wrong.isdisjoint(field.name for field in dataclasses.fields(config.data)):
        problems += [problem for problem in preflight.problems(config) if problem.flag not in wrong]
    if launch.rank == 0 and config.run.output_dir and config.run.mode == "train":
        problems += output_problems(config.run.output_dir)
    return problems


def output_problems(folder: str) -> list[Problem]:
    """Returns why nothing can be written to a folder, which is made if it is not there."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return []
    except OSError as error:
        return [Problem("output_dir", folder, f"expected a folder that can be written to: {error.strerror}")]


def with_sizes(config: TrainConfig, sizes: preflight.Sizes) -> TrainConfig:
    """Returns the configuration with the sizes that the data gives."""
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model, vocab_size=sizes.vocab_size, intermediate_size=config.model.feed_forward_size
        ),
        data=dataclasses.replace(
            config.data,
            max_seq_length=sizes.max_seq_length,
            max_predictions_per_seq=sizes.max_predictions_per_seq,
        ),
    )


def failed(rank: int, error: Exception) -> int:
    """Says in one line why this rank can't go on, and returns the exit code."""
    print(f"tftrain.run: rank {rank}: {error}", file=sys.stderr, flush=True)
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(["tftrain.run", *sys.argv[1:]]))
