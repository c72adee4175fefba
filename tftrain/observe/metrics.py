"""What a run reports: metrics.jsonl for programs, TensorBoard events for browsers, lines of the log for people.

All of them show the same rows. Only the chief writes.
"""

import contextlib
import itertools
import json
import logging
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tqdm import tqdm

from tftrain.files import durable
from tftrain.host.text import for_log, listed
from tftrain.host.units import shown
from tftrain.observe import rows
from tftrain.tasks.task import Mean

logger = logging.getLogger(__name__)

# Prefixes of fields that form their own section in TensorBoard.
_SECTION = re.compile(r"^(eval|memory|planned|spike|rollback)_")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl, one dict a line, with None where a number was not finite.

    An incomplete last line is skipped: its writer was stopped while writing it. Raises an OSError if the file can't be
    read, and a ValueError that names file and line if another line is not a JSON object with a step.
    """
    good, damaged = read_good_rows(path)
    if damaged:
        raise ValueError(f"{path}, line {damaged[0]}: expected a JSON object with a step; repair or remove the line")
    return good


def read_good_rows(path: str | Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Reads the rows of a metrics.jsonl that may be damaged; returns them and the numbers of the damaged lines."""
    good, damaged, lines = [], [], Path(path).read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
            if type(row["step"]) is not int or not all(isinstance(each, int | float | None) for each in row.values()):
                raise TypeError(row)
        except (ValueError, TypeError, LookupError, RecursionError, AttributeError):
            damaged.append(number)
        else:
            good.append(row)
    return good, damaged


def append(path: Path, text: str) -> None:
    """Appends text to a file, which is made if it is not there: all of it, or nothing if there is an OSError."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        size, left = os.fstat(file).st_size, text.encode()
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, size)
            raise
    finally:
        os.close(file)


class MetricsWriter:
    """Writes rows to OUTPUT_DIR/metrics.jsonl, OUTPUT_DIR/tensorboard and the log.

    The log gets the line that `log_format` asks for; OUTPUT_DIR/log.txt always gets the whole, Megatron-style line. A
    row that a file can't take, for example because the disk is full, is lost, and the run goes on. The first such row
    of each file gives a warning.
    """

    def __init__(
        self,
        output_dir: str | Path,
        max_steps: int,
        means: Sequence[Mean],
        log_format: str = "short",
        send: Callable[[int, Mapping[str, float]], None] | None = None,
        tensorboard: bool = True,
    ):
        """Prepares to append to the files; `output_dir` is created if missing.

        `log_format` is short or megatron. If stdout is a terminal, a progress bar stands under the lines of the log.
        `send` gets the step and the values of each row too, with the names that TensorBoard shows.
        """
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.max_steps, self._means = folder / "metrics.jsonl", max_steps, means
        self._log_path, self._is_short = folder / "log.txt", log_format == "short"
        self._failed: set[Path] = set()
        self._events_path = folder / "tensorboard"
        self._events: EventFileWriter | None = None
        self._send, self.last_line = send, ""
        if tensorboard:
            with self._surviving(self._events_path):
                self._events = EventFileWriter(str(self._events_path))
        self._bar = None

    def truncate_after(self, step: int, rollbacks: int = 0) -> None:
        """Removes the rows after the step that a run continues from, in metrics.jsonl and in TensorBoard; 0: all rows.

        Rows that report one of the first `rollbacks` rollbacks stay, because the checkpoint may be older than these.
        The file is replaced as a whole, so a crash leaves the old one or the new one. If lines of it are damaged, the
        old file is kept under another name.
        """
        restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add_event(event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=restart))
        if not self.path.exists():
            return
        good, damaged = read_good_rows(self.path)
        if damaged:
            names = (self.path.with_name(f"{self.path.name}.damaged-{number}") for number in itertools.count(1))
            aside = next(name for name in names if not name.exists())
            shutil.copyfile(self.path, aside)
            where = listed(damaged, 5)
            logger.warning(f"{self.path}: damaged in line {where}; the file is kept as {aside}, its good lines stay")
        stay = [row["rollbacks"] <= rollbacks if "rollbacks" in row else row["step"] <= step for row in good]
        durable.write(self.path, "".join(json.dumps(row) + "\n" for row in itertools.compress(good, stay)).encode())

    def advance(self, step: int) -> None:
        """Moves the progress bar, if there is one, to `step`."""
        if self._bar is None:
            if not (sys.stdout.isatty() and logger.isEnabledFor(logging.INFO)):
                return
            self._bar = tqdm(total=self.max_steps, initial=step - 1, unit="step", file=sys.stdout, dynamic_ncols=True)
        try:
            self._bar.update(step - self._bar.n)
        except OSError:  # The terminal has gone.
            self._bar.disable = True

    def train(self, row: rows.TrainRow, seconds_left: float = math.nan) -> None:
        """Writes and shows one training step; `seconds_left` to the last step are NaN if they are not known."""
        self._write(row, "train/")
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {shown(row.loss, 3)}", refresh=False)
        short = rows.short_train_line(row, self.max_steps, self._means, seconds_left)
        self._show(short, rows.train_line(row, self.max_steps, self._means))

    def evaluation(self, row: rows.EvalRow) -> None:
        """Writes and shows one evaluation."""
        self._write(row, "")
        short = rows.short_eval_line(row, self.max_steps, self._means)
        self._show(short, rows.eval_line(row, self.max_steps, self._means))

    def spike(self, row: rows.SpikeRow) -> None:
        """Writes and shows an unusual step."""
        self._write(row, "")
        self._show(rows.short_spike_line(row, self.max_steps), rows.spike_line(row, self.max_steps))

    def rollback(self, row: rows.RollbackRow, most: int) -> None:
        """Removes the rows after the step that a run goes back to; writes and shows this rollback, one of `most`."""
        self.truncate_after(row.step, row.rollbacks - 1)
        self._write(row, "")
        line = rows.rollback_line(row, most)
        self._show(line, line)

    def memory(self, row: rows.MemoryRow, planned: rows.PlannedRow, shown: str) -> None:
        """Writes measured and planned memory, and shows them as the text `shown`."""
        self._write(row, "")
        self._write(planned, "")
        self._append_log(shown)
        logger.info(shown)

    def close(self) -> None:
        """Ends the progress bar and the TensorBoard file."""
        if self._bar is not None:
            self._bar.close()
        if self._events:
            with self._surviving(self._events_path):
                self._events.close()

    def _write(self, row: rows.Row, prefix: str) -> None:
        values = rows.fields(row)
        # JSON has no NaN and no infinity, so they become null.
        finite = {name: value if value is None or math.isfinite(value) else None for name, value in values.items()}
        with self._surviving(self.path):
            append(self.path, json.dumps(finite, allow_nan=False) + "\n")
        step = values.pop("step")
        named = {prefix + _SECTION.sub(r"\1/", name): value for name, value in values.items() if value is not None}
        if self._send:
            self._send(step, named)
        shown = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in named.items()]
        self._add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=shown)))

    def _show(self, short: str, whole: str) -> None:
        """Writes one line to log.txt and to the log, with the local time; a short line has no date."""
        now = time.localtime()
        self.last_line = whole = for_log(f"[{time.strftime('%Y-%m-%d %H:%M:%S', now)}] {whole}")
        self._append_log(whole)
        logger.info(f"{time.strftime('%H:%M:%S', now)}  {short}" if self._is_short else whole)

    def _append_log(self, text: str) -> None:
        with self._surviving(self._log_path):
            append(self._log_path, for_log(text) + "\n")

    def _add_event(self, event: event_pb2.Event) -> None:
        if self._events is None:
            return
        writer, self._events = self._events, None  # After an error its thread is gone, and it takes nothing more.
        with self._surviving(self._events_path):
            writer.add_event(event)
            writer.flush()
            self._events = writer

    @contextlib.contextmanager
    def _surviving(self, path: Path):
        """Lets an error of a file inside a `with` statement pass; the first error of each file gives a warning."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            if path not in self._failed:
                lost = "training continues, and what can't be written is lost"
                logger.warning(f"{path}: can't be written: {error}; {lost}")
            self._failed.add(path)
