"""The programs as functions, for a notebook: flags are keyword arguments, and one process does all of the work.

    from tftrain import notebook

    notebook.train(flagfile="configs/tiny.flags", data_dir="data", output_dir="runs/tiny")

A function calls what its program calls. It raises ConfigError with all wrong flags, in the program's words, and
RunError or OSError, whose message names the file or the flag. docs/notebook.md has an example.
"""

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tftrain import run
from tftrain.cli.flags import command_line
from tftrain.config.compute import ComputeConfig
from tftrain.config.fields import ConfigError, Problem
from tftrain.config.predict import PredictConfig
from tftrain.config.prepare import PrepareConfig
from tftrain.config.train import TrainConfig
from tftrain.host import determinism, log
from tftrain.host.exit_codes import ExitCode, RunError
from tftrain.host.keras_version import require_keras_2
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.launcher import Launch

# The models need the Keras 2 API, and TensorFlow chooses one when it is first used.
os.environ["TF_USE_LEGACY_KERAS"] = "1"


def prepare(**flags: Any) -> None:
    """Prepares text, as `tftrain.prepare` does."""
    from tftrain.prepare import __main__ as prepare_program

    config = prepare_program.PROGRAM.checked(_command_line("prepare", PrepareConfig, flags)[1:])

    with _one_rank():
        import tensorflow as tf

        # The process may train on its GPU afterwards, so the GPU can't be hidden from TensorFlow.
        with tf.device("/CPU:0"):
            prepare_program.prepare(config)


def train(**flags: Any) -> list[dict[str, Any]]:
    """Trains on one rank, as `tftrain.run` does, and returns the rows of metrics.jsonl.

    Raises a KeyboardInterrupt if a signal stopped the run; its state is saved, and the same call continues it.
    """
    began = time.monotonic()
    config, inputs = _run_config({**flags, "mode": "train"})
    with run.locked(config.run.folder, Launch()), _one_rank(config.compute) as mesh:
        from tftrain.observe.metrics import read_rows
        from tftrain.observe.watchdog import Watchdog
        from tftrain.train import seeds

        watchdog = Watchdog(mesh.rank, config.limits, config.run.folder)
        watchdog.ledger.restart(time.monotonic() - began)  # What the kernel did before is no part of the run.
        if seeds.train(config, inputs, mesh, watchdog) == ExitCode.STOPPED:
            raise KeyboardInterrupt
        path = Path(config.run.folder) / "metrics.jsonl"
        return read_rows(path) if path.exists() else []  # Several seeds have a file each.


def evaluate(**flags: Any) -> dict[str, float]:
    """Evaluates a checkpoint, as `tftrain.run --mode=evaluate` does; returns its fields of metrics.jsonl."""
    config, inputs = _run_config({**flags, "mode": "evaluate"})
    with _one_rank(config.compute) as mesh:
        from tftrain.observe import rows
        from tftrain.train import evaluate as evaluation

        return rows.fields(evaluation.evaluate(config, inputs, mesh))


def predict(*texts: str, **flags: Any) -> list[dict[str, Any]]:
    """Predicts, as `tftrain.predict --format=jsonl` does; returns an object for each text."""
    argv = _command_line("predict", PredictConfig, {**flags, "format": "jsonl"})
    from tftrain import predict as predict_program

    config = predict_program.program(texts).checked(argv[1:])

    with _one_rank():
        from tftrain.inference.predictions import predictions

        return [json.loads(line) for line in predictions(config, texts)]


def _run_config(flags: dict[str, Any]) -> tuple[TrainConfig, Inputs]:
    """Returns the checked configuration of a run, and what it reads; sets the environment that it needs."""
    config, inputs = run.checked(*run.read(_command_line("run", TrainConfig, flags)), Launch())
    log.configure(program="tftrain.run", level=config.log.log_level)
    compute = config.compute
    expected = "TensorFlow is loaded and has read its settings; restart the kernel, and call this first"
    needed = {"deterministic": determinism.XLA_FLAG} if compute.deterministic else {}
    needed |= {} if compute.cuda_graphs else {"cuda_graphs": run.NO_CUDA_GRAPHS}
    late = [name for name, each in needed.items() if each not in os.environ.get("XLA_FLAGS", "").split()]
    if late and "tensorflow" in sys.modules:
        raise ConfigError([Problem(name, getattr(compute, name), expected) for name in late])
    run.prepare_process(config.compute, may_restart=False)
    return config, inputs


def _command_line(name: str, config_class: type, flags: dict[str, Any]) -> list[str]:
    log.configure(program=f"tftrain.{name}")
    return command_line(f"tftrain.{name}", config_class, flags)


@contextlib.contextmanager
def _one_rank(compute: ComputeConfig | None = None) -> Iterator[Any]:
    """Loads TensorFlow and yields the mesh of this process alone; an error of the body says what to do.

    Raises a ConfigError or an ImportError if TensorFlow already runs, in another way than the flags or the models need.
    """
    first = "run `from tftrain import notebook` before anything that uses TensorFlow"
    require_keras_2(f"restart the kernel, and {first}")
    import tensorflow as tf

    from tftrain.parallel import mesh, start

    threads, deterministic = (compute.cpu_threads, compute.deterministic) if compute else (0, False)
    if deterministic:
        determinism.enable()
    try:
        one_rank = start.start(Launch(), threads)
    except RunError:
        raise
    except RuntimeError as error:  # TensorFlow has started, and keeps its threads and devices.
        if threads:
            expected = "TensorFlow has started with other threads; restart the kernel, or remove this flag"
            raise ConfigError([Problem("cpu_threads", threads, expected)]) from error
        one_rank = mesh.Mesh()
    try:
        yield one_rank
    except tf.errors.OpError as error:
        from tftrain.train import process

        raise (process.cause_of(error, deterministic) or error) from None
    finally:
        gc.collect()
