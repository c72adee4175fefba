"""Trains or evaluates an encoder: `python -m tftrain.run --flagfile=configs/X.flags`, alone or under horovodrun.

Exit codes: 0 done, 1 the run failed (data, checkpoint, ranks), 2 wrong flags, 130 interrupted from the keyboard.
"""

import dataclasses
import os
import sys

from tftrain import flags
from tftrain.config import TrainConfig
from tftrain.data import preflight
from tftrain.fields import ConfigError
from tftrain.parallel.launcher import launch_from_environment

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit code."""
    launch = launch_from_environment()
    try:
        config = flags.parse(TrainConfig, argv)
        # The data is looked at only where the flags that name it are sound.
        problems = config.problems(launch.size) or preflight.problems(config)
        if problems:
            raise ConfigError(problems)
        config = with_sizes(config.resolve(launch.size), preflight.sizes(config))
    except ConfigError as error:
        flags.refuse("tftrain.run", error, launch.rank)

    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    # Where there is no GPU, TensorFlow reports that as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if os.path.exists("/dev/nvidiactl") else "3")
    # TensorFlow takes seconds to load: wrong flags were refused before this line.
    import tensorflow as tf

    from tftrain.data.errors import DataError, data_error
    from tftrain.parallel import mesh
    from tftrain.train import loop
    from tftrain.train.checkpoint import CheckpointError

    try:
        ranks = mesh.start(launch, config.compute.cpu_threads)
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


def with_sizes(config: TrainConfig, sizes: preflight.Sizes) -> TrainConfig:
    """Returns the configuration with the sizes that the data gives."""
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocab_size=sizes.vocab_size),
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
