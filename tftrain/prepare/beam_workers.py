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
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

from tftrain.config.fields import ConfigError, Problem
from tftrain.host.exit_codes import RunError
from tftrain.input.errors import DataError
from tftrain.prepare.workers import ENVIRONMENT, Result, Workers, progress

logger = logging.getLogger(__name__)

_TASKS = "tasks"


class BeamWorkers(Workers):
    """The workers of a Beam runner."""

    def __init__(self, options: Sequence[str], work: str):
        """Checks the options of Beam's pipelines; `work` is a folder that all workers see.

        Raises:
            ConfigError: an option is unknown or has a wrong value.
        """
        super().__init__(1)
        logging.getLogger("apache_beam").setLevel(logging.ERROR)
        self._options, self._work = _checked(options), work

    def run(self, stage: str, function: Callable[..., Result], tasks: Sequence[tuple]) -> Iterator[Result]:
        """Runs a pipeline, and yields function(*task) for each task, in task order, see `Workers.run`.

        Raises:
            DataError: the pipeline failed, or a worker does not see the folder.
        """
        with progress(stage, len(tasks)) as advance:
            folder = os.path.join(self._work, f"stage-{uuid.uuid4().hex}")
            os.mkdir(folder)
            _write(os.path.join(folder, _TASKS), (function, tasks))
            self._run_pipeline(stage, folder, len(tasks))
            for number in range(len(tasks)):
                try:
                    result, error = _read(os.path.join(folder, str(number)))
                except FileNotFoundError:
                    raise DataError(
                        f"--output_dir={os.path.dirname(self._work)}: a Beam worker does not see this folder; expected "
                        "a folder on a file system that all workers have at the same path"
                    ) from None
                if error:
                    raise error
                advance()
                yield result
            shutil.rmtree(folder)

    def _run_pipeline(self, stage: str, folder: str, count: int) -> None:
        with _interrupts() as interrupts:
            try:
                pipeline = beam.Pipeline(options=PipelineOptions(self._options))
                tasks = pipeline | "tasks" >> beam.Create(range(count), reshuffle=False) | beam.Reshuffle()
                tasks | stage >> beam.Map(_run_task, folder, _process())
                state = _finished(pipeline.run())
                error = None if state == PipelineState.DONE else RuntimeError(f"it ended as {state}")
            except (Exception, KeyboardInterrupt) as raised:
                error = [*interrupts, raised][0]
        if isinstance(error, KeyboardInterrupt):
            raise error
        if error:
            reason = str(error).strip().split("\n")[-1] or type(error).__name__
            raise DataError(f"the Beam pipeline of the stage {stage!r} failed: {reason}") from error


def _finished(running: PipelineResult) -> str:
    """Waits for a pipeline, and returns its state; cancels it if the program is interrupted."""
    try:
        return running.wait_until_finish()
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):
            running.cancel()
        raise


@contextlib.contextmanager
def _interrupts() -> Iterator[list[BaseException]]:
    """Interrupts Beam's direct runner also if one of its worker processes dies: it would wait for ever.

    A thread waits for each of these processes, and raises a RuntimeError. A signal to this program alone ends these
    processes, for which it would wait too. So the first item of the list is why the main thread is interrupted.
    """
    reasons: list[BaseException] = []

    def interrupt(*_) -> None:
        reasons.append(KeyboardInterrupt())
        _end_processes()
        raise reasons[0]

    def notice(thread: threading.ExceptHookArgs) -> None:
        if isinstance(thread.exc_value, RuntimeError) and not reasons:
            reasons.append(thread.exc_value)
            os.kill(os.getpid(), signal.SIGINT)

    is_main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    previous = threading.excepthook, [signal.signal(number, interrupt) for number in signals]
    threading.excepthook = notice if is_main else threading.excepthook
    try:
        yield reasons
    finally:
        threading.excepthook = previous[0]
        for number, handler in zip(signals, previous[1], strict=True):
            signal.signal(number, handler or signal.SIG_DFL)
        if reasons:
            _end_processes()  # Also those that were about to start.


def _end_processes(parent: str = "self") -> None:
    """Kills the processes that Beam's direct runner has started, through a shell."""
    for path in Path("/proc", parent, "task").glob("*/children"):
        with contextlib.suppress(OSError):  # It has ended.
            for process in path.read_text().split():
                _end_processes(process)
                if "apache_beam" in Path("/proc", process, "cmdline").read_text():
                    os.kill(int(process), signal.SIGKILL)


def _checked(options: Sequence[str]) -> list[str]:
    """Returns options for pipelines, with defaults of the direct runner."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            known = PipelineOptions(options).get_all_options()
            unknown = PipelineOptions(options).get_all_options(retain_unknown_options=True).keys() - known.keys()
        is_direct = (known["runner"] or "direct").lower() in ("direct", "directrunner")
        if unknown and is_direct:
            raise ValueError(f"Beam's direct runner has no option {', '.join(sorted(unknown))}")
        if unknown:
            logger.warning(f"--beam_options: only {known['runner']} may know {', '.join(sorted(unknown))}")
        if is_direct:
            # Without the first, it would download a program to run the pipelines (Prism). The second one quiets it.
            options = ["--allow_unsafe_triggers", "--default_sdk_harness_log_level=ERROR", *options]
        beam.Pipeline(options=PipelineOptions(options))
    except (ImportError, ValueError) as error:
        raise ConfigError([Problem("beam_options", tuple(options), str(error))]) from error
    except SystemExit:
        reason = printed.getvalue().strip().split("\n")[-1].split("error: ")[-1]
        raise ConfigError([Problem("beam_options", tuple(options), reason)]) from None
    return list(options)


def _process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _run_task(number: int, folder: str, program: tuple[str, int]) -> None:
    """Runs a task on a worker, and writes its result, or the error that no repetition can mend."""
    if _process() != program:
        os.environ.update(ENVIRONMENT)
    try:
        function, tasks = _read_tasks(os.path.join(folder, _TASKS))
    except FileNotFoundError:  # The program finds that the result is missing.
        return
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
