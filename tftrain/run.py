"""Trains or evaluates an encoder: `python -m tftrain.run --flagfile=configs/X.flags`, alone or under horovodrun.

Exit codes, of which docs/reliability.md says more:
    0   done
    1   the run failed: data, checkpoint, ranks, or an exception nobody expected
    2   wrong flags
    75  a signal (SIGTERM, SIGINT, SIGUSR1) asked for the end, and the state is saved: start again to continue
    76  too many steps in a row were not finite (--max_nan_steps)
    77  something took longer than its limit (--start_timeout_seconds, --step_..., --save_..., --exit_...)
    78  too many checkpoints could not be written (--max_failed_saves), or the last one
    79  a signal asked for the end, and --preempt_save_seconds were not enough to save
    80  another rank ended; its own exit code says why
    128 and the signal's number: ended at once by a signal, by the second one where the first is a request
"""

import dataclasses
import logging
import os
import signal
import sys
import tempfile

from tftrain import devices, flags, huge_pages, log
from tftrain.config import TrainConfig
from tftrain.data import preflight
from tftrain.data.errors import DataError, data_error
from tftrain.exit_codes import ExitCode
from tftrain.fields import ConfigError, Problem
from tftrain.parallel.launcher import Launch, launch_from_environment
from tftrain.supervise import elastic

logger = logging.getLogger("tftrain.run")

LOW_MEMORY_XLA = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit code."""
    launch = launch_from_environment()
    log.configure(launch.rank)
    try:
        config, problems = flags.read(TrainConfig, elastic.arguments(argv, os.environ))
        if __name__ == "__main__" and not problems and elastic.supervises(config, os.environ):
            return elastic.supervise(config, os.environ)
        if problems := all_problems(config, problems, launch):
            raise ConfigError(problems)
        log.configure(launch.rank, config.run.log_level)
        config = with_sizes(config.resolve(launch.size), preflight.sizes(config))
    except ConfigError as error:
        flags.refuse("tftrain.run", error, launch.rank)
    except DataError as error:
        logger.error(error)
        return ExitCode.FAILED

    gpu = devices.has_driver()
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

    from tftrain.checkpoint.errors import CheckpointError, FailedSavesError
    from tftrain.parallel import collectives, start
    from tftrain.parallel.mesh import MeshError
    from tftrain.report.health import NotFiniteError
    from tftrain.supervise import peer_failure
    from tftrain.supervise.watchdog import Watchdog
    from tftrain.train import loop, rank_checks

    watchdog, code = Watchdog(launch.rank, config.run), ExitCode.FAILED
    ended: list[int] = []  # With which code, if this rank has come to its own end.

    def another_ended() -> None:
        # Python's own end takes seconds to free the graphs, and Horovod's may ask the rank that is gone.
        try:
            if not ended:
                logger.error(f"another rank ended, or can't be reached; see what it says{watchdog.waiting()}")
            sys.stdout.flush()
        finally:
            os._exit(ended[0] if ended else ExitCode.PEER_ENDED)

    if launch.size > 1:
        peer_failure.on_uncaught_gloo(another_ended)
    try:
        with watchdog.limit("connecting the ranks", "start_timeout_seconds"):
            ranks = start.start(launch, config.compute.cpu_threads, config.parallel.tensor_parallel_size)
            watchdog.pending = ranks.pending
            if launch.size > 1:
                peer_failure.on_forgotten(lambda: bool(ranks.pending.unfinished()), another_ended)
            rank_checks.before_start(config, ranks)
        code = {"train": loop.train, "evaluate": loop.evaluate}[config.run.mode](config, ranks, watchdog)
    except FailedSavesError as error:
        logger.error(error)
        code = ExitCode.SAVES_FAILED
    except (DataError, CheckpointError, MeshError, OSError) as error:
        logger.error(error)
    except NotFiniteError as error:
        logger.error(error)
        code = ExitCode.NOT_FINITE
    except tf.errors.OpError as error:
        # A record's fault reaches us wrapped in TensorFlow's own error; anything else deserves its traceback.
        if (cause := data_error(error)) is not None:
            logger.error(cause)
        elif collectives.is_lost(error):
            another_ended()
        else:
            raise
    except KeyboardInterrupt:
        code = ExitCode.SIGNALLED + signal.SIGINT
    finally:
        ended.append(int(code))
        # Horovod's own end waits for the other ranks.
        watchdog.begin("the end of the process", "exit_timeout_seconds", code or ExitCode.STALLED)
    return code


def all_problems(config: TrainConfig, misread: list[Problem], launch: Launch) -> list[Problem]:
    """Returns every reason not to start, with one entry for a flag at most from each check.

    Args:
        config: with the defaults in the place of flags that could not be read.
        misread: the problems of those flags.
        launch: this process's place; the output folder is the chief's affair.
    """
    problems = [*misread, *(p for p in config.problems(launch.size) if p.flag not in {m.flag for m in misread})]
    wrong = {problem.flag for problem in problems}
    if "pipeline_parallel_size" not in wrong and (stages := config.parallel.pipeline_parallel_size) > 1:
        expected = "expected 1: training divides no layers into stages, only python -m tftrain.plan does"
        problems.append(Problem("pipeline_parallel_size", stages, expected))
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


if __name__ == "__main__":
    sys.exit(main(["tftrain.run", *sys.argv[1:]]))
