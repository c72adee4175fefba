"""Trackers of experiments that get the rows of a run too: `--report_to`.

A tracker works in a thread of its own, and the run goes on whatever it does. After an error, or if it has not caught up
at the end, a line of the log names it; metrics.jsonl has all rows. An error keeps nothing else back: the tracker still
gets later rows, and the outcome of the run. OUTPUT_DIR/trackers.json keeps the tracker's own number of the run, so that
all resumes of a run are one run there.
"""

import csv
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tftrain.files import durable
from tftrain.host.exit_codes import ExitCode
from tftrain.observe.metrics import read_rows

logger = logging.getLogger(__name__)

EXIT_SECONDS = 20.0  # how long the end of a run waits for a tracker
MOST_PARAMETERS = 100  # that MLflow takes at once
MOST_WAITING = 10_000  # rows that wait for a slow tracker


class Csv:
    """OUTPUT_DIR/metrics.csv: metrics.jsonl as a table, with a column for each metric."""

    id = None

    def __init__(self, folder: Path, config: Mapping[str, Any], known: str | None):
        self._folder = folder

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Does nothing: `close` reads the rows, without those of steps that were lost."""

    def close(self, pictures: Sequence[Path], last_line: str, code: int) -> None:
        """Writes the table."""
        rows = read_rows(self._folder / "metrics.jsonl")
        with (self._folder / "metrics.csv").open("w", newline="") as file:
            names = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.writer(file)
            writer.writerow(map(_cell, names))
            writer.writerows([_cell(row.get(name)) for name in names] for row in rows)


def _cell(value: Any) -> Any:
    """Returns a value of which no program of spreadsheets makes a formula: rows may be another's."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value


class Wandb:
    """Weights & Biases, as its own variables say: WANDB_PROJECT, WANDB_MODE=offline and others."""

    def __init__(self, folder: Path, config: Mapping[str, Any], known: str | None):
        import wandb

        self._wandb = wandb
        project = os.environ.get("WANDB_PROJECT", "tftrain")
        settings = wandb.Settings(silent=True, console="off")
        self._run = wandb.init(
            dir=str(folder), project=project, id=known, resume="allow", config=dict(config), settings=settings,
            name=folder.name,
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")  # A resume may begin before the last step that was logged.
        self.id = self._run.id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends a row."""
        self._run.log({"step": step, **values})

    def close(self, pictures: Sequence[Path], last_line: str, code: int) -> None:
        """Sends pictures and the last line, and ends the run with its exit code."""
        try:
            self._run.summary["last_line"] = last_line
            self._run.log({path.stem: self._wandb.Image(str(path)) for path in pictures})
        finally:
            self._run.finish(exit_code=code)


class Mlflow:
    """MLflow, as its own variables say: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and others."""

    def __init__(self, folder: Path, config: Mapping[str, Any], known: str | None):
        import mlflow

        self._mlflow, self._client = mlflow, mlflow.MlflowClient()
        if known is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "tftrain")
            known_experiment = self._client.get_experiment_by_name(name)
            experiment = known_experiment.experiment_id if known_experiment else self._client.create_experiment(name)
            known = self._client.create_run(experiment, run_name=folder.name).info.run_id
            parameters = [mlflow.entities.Param(name, str(value)) for name, value in config.items()]
            for start in range(0, len(parameters), MOST_PARAMETERS):
                self._client.log_batch(known, params=parameters[start : start + MOST_PARAMETERS])
        else:
            self._client.update_run(known, "RUNNING")
        self.id, self._config = known, dict(config)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends a row. In a folder, LOSS is a file, which holds no LOSS/SOURCE: that is LOSS.SOURCE."""
        now, named = int(1000 * time.time()), {name.replace("loss/", "loss."): value for name, value in values.items()}
        metrics = [self._mlflow.entities.Metric(name, value, now, step) for name, value in named.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def close(self, pictures: Sequence[Path], last_line: str, code: int) -> None:
        """Sends pictures and the last line, and ends the run: finished, failed, or killed by a signal."""
        is_killed = code in (ExitCode.STOPPED, ExitCode.NOT_SAVED) or code > ExitCode.SIGNALLED
        try:
            self._client.set_tag(self.id, "last_line", last_line)
            self._client.set_tag(self.id, "exit_code", str(int(code)))
            self._client.log_dict(self.id, self._config, "config.json")  # The store of files may be another one.
            for path in pictures:
                self._client.log_artifact(self.id, str(path))
        finally:
            self._client.set_terminated(self.id, "KILLED" if is_killed else "FAILED" if code else "FINISHED")


KINDS = {"csv": Csv, "wandb": Wandb, "mlflow": Mlflow}


class Trackers:
    """The trackers of a run, on the chief."""

    def __init__(self, names: Sequence[str], folder: Path, config: Mapping[str, Any], is_resumed: bool):
        """Starts a thread for each; `config` has the value of each flag. A run that begins anew is a new one there."""
        path = folder / "trackers.json"
        self._ids = _known(path) if is_resumed and path.exists() else {}
        self._path, self._lock, self._is_closed = path, threading.Lock(), False
        self._threads = {name: _Thread(name, folder, config, self._ids.get(name), self._keep) for name in names}
        for thread in self._threads.values():
            thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Gives a row to each tracker, without a wait."""
        for thread in self._threads.values():
            thread.put("log", step, values)

    def close(self, pictures: Sequence[Path], last_line: str, code: int) -> None:
        """Gives each tracker pictures, the last line of the log and the exit code of the run; only the first call does.

        It waits at most EXIT_SECONDS for all of them.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for thread in self._threads.values():
            thread.put("close", pictures, last_line, code)
        end = time.monotonic() + EXIT_SECONDS
        for name, thread in self._threads.items():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                logger.warning(
                    f"--report_to={name}: it has not taken all rows after {EXIT_SECONDS:.0f} s; the run ends"
                )

    def _keep(self, name: str, number: str) -> None:
        with self._lock:
            self._ids[name] = number
            durable.write(self._path, (json.dumps(self._ids) + "\n").encode())


def _known(path: Path) -> dict[str, str]:
    """Returns each tracker's number of the run; none, with a warning, if the file is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        logger.warning(f"{path}: {error}; --report_to begins a new run there")
        return {}


class _Thread(threading.Thread):
    """Makes one tracker and does what is put; names the first error; ends after `close`, or if there is no tracker."""

    def __init__(
        self, name: str, folder: Path, config: Mapping[str, Any], known: str | None, keep: Callable[[str, str], None]
    ):
        super().__init__(name=f"tracker {name}", daemon=True)
        self._kind, self._start_with, self._keep = name, (folder, config, known), keep
        self._calls: queue.Queue[tuple] = queue.Queue(MOST_WAITING)
        self._is_behind = self._has_failed = False

    def put(self, method: str, *args: Any) -> None:
        try:
            self._calls.put_nowait((method, *args))
        except queue.Full:
            if not self._is_behind and self.is_alive():
                logger.warning(
                    f"--report_to={self._kind}: it has not taken {MOST_WAITING} rows yet, and loses some from now on"
                )
            self._is_behind = True

    def run(self) -> None:
        try:
            tracker = KINDS[self._kind](*self._start_with)
            if tracker.id:
                self._keep(self._kind, tracker.id)
        except Exception as error:  # A package, a network or a server may raise anything.
            self._warn(error, "it gets no rows, metrics.jsonl has all")
            return
        method = ""
        while method != "close":
            method, *args = self._calls.get()
            try:
                getattr(tracker, method)(*args)
            except Exception as error:
                what = "pictures or files of the run" if method == "close" else "rows"
                self._warn(error, f"it may lack {what}, metrics.jsonl has all rows")

    def _warn(self, error: Exception, words: str) -> None:
        if not self._has_failed:
            text = " ".join(str(error).split())
            logger.warning(f"--report_to={self._kind}: {type(error).__name__}: {text[:300]}; {words}")
        self._has_failed = True
