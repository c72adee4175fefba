"""Runs a preparation on many machines: each stage is an Apache Beam pipeline over the numbers of its tasks.

Tasks and results are files in a folder that all workers see. Not every runner can return results to the program, and
tasks with a tokenizer are too large for the description of a pipeline. A runner may repeat a task, which then replaces
its result by an equal one.
"""

import contextlib
import functools
import io
import logging
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tftrain.config.fields import ConfigError, Problem
from tftrain.files.errors import DataError
from tftrain.host.exit_codes import RunError
from tftrain.prepare.workers import ENVIRONMENT, Result, Workers, begin, spawned

logger = logging.getLogger(__name__)

_TASKS = "tasks"  # the file with the tasks of a stage
_DIED = "a worker process died, probably because memory was short"
_CANCEL_SECONDS = 30  # that a cluster has to cancel a pipeline


class BeamWorkers(Workers):
    """The workers of a Beam runner. The pipelines run in a process of their own, and so does Beam's direct runner.

    The direct runner waits for ever for a worker process that died, and for its other processes after an interrupt.
    Here they all end with the process of the pipelines.
    """

    def __init__(self, options: Sequence[str], work: str):
        """Checks the options of Beam's pipelines; `work` is a folder that all workers see.

        Raises a ConfigError if an option is unknown or has a wrong value.
        """
        super().__init__(1)
        self._pool = spawned(1, _begin)
        self._work = work
        try:
            self._options, warning = self._pool.submit(_checked, options).result()
        except ValueError as error:
            self._pool.shutdown()
            raise ConfigError([Problem("beam_options", tuple(options), str(error))]) from None
        if warning:
            logger.warning(f"--beam_options: {warning}")

    def _results(self, stage: str, function: Callable[..., Result], tasks: Sequence[tuple]) -> Iterator[Result]:
        """Runs a pipeline; raises a DataError if it fails, or a worker does not see the folder."""
        folder = os.path.join(self._work, f"stage-{uuid.uuid4().hex}")
        os.mkdir(folder)
        _write(os.path.join(folder, _TASKS), (function, tasks))
        try:
            failure = self._pool.submit(_run_pipeline, self._options, stage, folder, len(tasks)).result()
        except BrokenProcessPool:
            failure = _DIED
        if failure:
            raise _failed(stage, failure)
        for number in range(len(tasks)):
            try:
                result, error = _read(os.path.join(folder, str(number)))
            except FileNotFoundError:  # Beam may take a pipeline as finished if all its workers died.
                raise _failed(stage, _DIED) from None
            if error:
                raise error
            yield result
        shutil.rmtree(folder)


def _failed(stage: str, reason: str) -> DataError:
    return DataError(f"the Beam pipeline of the stage {stage!r} failed: {reason}")


def _begin() -> None:
    """Sets up the process of the pipelines: whatever Beam starts ends with it, and it with the program."""
    os.setsid()
    begin(_end)
    signal.signal(signal.SIGTERM, _end)
    logging.disable(logging.WARNING)  # Beam's import warns of optional packages that it does not find.


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n")[-1] or type(error).__name__


def _end(*_: Any) -> None:
    os.killpg(0, signal.SIGKILL)


def _run_pipeline(options: Sequence[str], stage: str, folder: str, count: int) -> str | None:
    """Runs the tasks of a stage. Returns why that failed, if it did."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineState

    threading.excepthook = _end_with_thread
    try:
        pipeline = beam.Pipeline(options=PipelineOptions(options))
        tasks = pipeline | "tasks" >> beam.Create(range(count), reshuffle=False) | beam.Reshuffle()
        tasks | stage >> beam.Map(_run_task, folder)
        running = pipeline.run()  # The direct runner has finished then.
        signal.signal(signal.SIGTERM, functools.partial(_cancel, running))
        state = running.wait_until_finish()
    except Exception as error:
        return _line(error)
    finally:
        signal.signal(signal.SIGTERM, _end)
    return None if state == PipelineState.DONE else f"it ended as {state}"


def _end_with_thread(thread: threading.ExceptHookArgs) -> None:
    """Ends the processes after an exception of one of Beam's threads, which wait for its worker processes."""
    print(f"Beam: {_line(thread.exc_value)}", file=sys.stderr, flush=True)
    _end()


def _cancel(running: Any, *_: Any) -> None:
    signal.signal(signal.SIGALRM, _end)
    signal.alarm(_CANCEL_SECONDS)
    with contextlib.suppress(Exception):
        running.cancel()
    _end()


def _checked(options: Sequence[str]) -> tuple[list[str], str]:
    """Returns options for pipelines, with defaults of the direct runner, and a warning, or "".

    Raises a ValueError if an option is unknown or has a wrong value.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    printed, warning = io.StringIO(), ""
    try:
        with contextlib.redirect_stderr(printed):
            known = PipelineOptions(options).get_all_options()
            unknown = PipelineOptions(options).get_all_options(retain_unknown_options=True).keys() - known.keys()
        is_direct = (known["runner"] or "direct").lower() in ("direct", "directrunner")
        if unknown and is_direct:
            raise ValueError(f"Beam's direct runner has no option {', '.join(sorted(unknown))}")
        if unknown:
            warning = f"only {known['runner']} may know {', '.join(sorted(unknown))}"
        if is_direct:
            # Without the first, it would download a program to run the pipelines (Prism). The second one quiets it.
            options = ["--allow_unsafe_triggers", "--default_sdk_harness_log_level=ERROR", *options]
        beam.Pipeline(options=PipelineOptions(options))
    except ImportError as error:
        raise ValueError(str(error)) from error
    except SystemExit:
        raise ValueError(printed.getvalue().strip().split("\n")[-1].split("error: ")[-1]) from None
    return list(options), warning


def _run_task(number: int, folder: str) -> None:
    """Runs a task on a worker, and writes its result, or the error that no repetition can mend."""
    os.environ.update(ENVIRONMENT)
    try:
        function, tasks = _read_tasks(os.path.join(folder, _TASKS))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder}: a Beam worker on {socket.gethostname()} does not see this folder; expected an --output_dir on "
            "a file system that all workers have at the same path"
        ) from None
    try:
        outcome = function(*tasks[number]), None
    except RunError as error:
        outcome = None, error
    _write(os.path.join(folder, str(number)), outcome)


def _write(path: str, content: object) -> None:
    unfinished = f"{path}-{uuid.uuid4().hex}"
    with open(unfinished, "wb") as file:
        pickle.dump(content, file, pickle.HIGHEST_PROTOCOL)
    os.replace(unfinished, path)


def _read(path: str) -> object:
    with open(path, "rb") as file:
        return pickle.load(file)


# A worker reads the tasks of a stage once.
_read_tasks = functools.lru_cache(maxsize=1)(_read)
