"""What a run reports: metrics.jsonl for programs, TensorBoard events for browsers, lines of the log for people.

All of them show the same rows. Only the chief writes.
"""

import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tqdm import tqdm

from tftrain.report import rows
from tftrain.report.rows import EvalRow, MemoryRow, PlannedRow, SpikeRow, TrainRow
from tftrain.tasks.task import Mean

logger = logging.getLogger(__name__)

# Prefixes of fields that form their own section in TensorBoard.
_SECTION = re.compile(r"^(eval|memory|planned|spike)_")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Reads metrics.jsonl.

    An incomplete last line is skipped: its writer was stopped while writing it.

    Args:
        path: the file.

    Returns:
        One dict a line; None where a number was not finite.

    Raises:
        OSError: it cannot be read.
        ValueError: another line is not a JSON object with a step; the message names the file and the line.
    """
    found, lines = [], Path(path).read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
            row["step"] + 0
        except (ValueError, TypeError, KeyError):
            message = f"{path}, line {number}: expected a JSON object with a step; repair or remove the line"
            raise ValueError(message) from None
        found.append(row)
    return found


class MetricsWriter:
    """Writes rows to OUTPUT_DIR/metrics.jsonl, OUTPUT_DIR/tensorboard and the log.

    The log gets the line that `log_format` asks for; OUTPUT_DIR/log.txt always gets the whole, Megatron-style line.
    """

    def __init__(self, output_dir: str | Path, max_steps: int, means: Sequence[Mean], log_format: str = "short"):
        """Prepares to append to the files.

        Args:
            output_dir: created if missing.
            max_steps: updates of the whole run.
            means: the task's.
            log_format: of the lines in the log, short or megatron. If stdout is a terminal, a progress bar stands
                under them.
        """
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.max_steps, self._means = folder / "metrics.jsonl", max_steps, means
        self._log_path, self._is_short = folder / "log.txt", log_format == "short"
        self._events = EventFileWriter(str(folder / "tensorboard"))
        self._bar = None

    def truncate_after(self, step: int) -> None:
        """Removes the rows after the step that a run continues from, in metrics.jsonl and in TensorBoard.

        The file is replaced as a whole, so a crash leaves the old one or the new one.

        Args:
            step: the last step whose rows stay; 0 removes all rows.

        Raises:
            ValueError: a line of the file is not a row.
        """
        restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._events.add_event(event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=restart))
        if not self.path.exists():
            return
        remaining = [row for row in read_rows(self.path) if row["step"] <= step]
        temporary = self.path.with_suffix(".jsonl.new")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in remaining)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    def advance(self, step: int) -> None:
        """Moves the progress bar, if there is one, to `step`."""
        if self._bar is None:
            if not (sys.stdout.isatty() and logger.isEnabledFor(logging.INFO)):
                return
            self._bar = tqdm(total=self.max_steps, initial=step - 1, unit="step", file=sys.stdout, dynamic_ncols=True)
        self._bar.update(step - self._bar.n)

    def train(self, row: TrainRow, seconds_left: float = math.nan) -> None:
        """Writes and shows one training step; `seconds_left` to the last step are NaN if they are not known."""
        self._write(row, "train/")
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {row.loss:.3f}", refresh=False)
        short = rows.short_train_line(row, self.max_steps, seconds_left)
        self._show(short, rows.train_line(row, self.max_steps, self._means))

    def evaluation(self, row: EvalRow) -> None:
        """Writes and shows one evaluation."""
        self._write(row, "")
        short = rows.short_eval_line(row, self.max_steps, self._means)
        self._show(short, rows.eval_line(row, self.max_steps, self._means))

    def spike(self, row: SpikeRow) -> None:
        """Writes and shows an unusual step."""
        self._write(row, "")
        self._show(rows.short_spike_line(row, self.max_steps), rows.spike_line(row, self.max_steps))

    def memory(self, row: MemoryRow, planned: PlannedRow, shown: str) -> None:
        """Writes measured and planned memory, and shows them as the text `shown`."""
        self._write(row, "")
        self._write(planned, "")
        self._append_log(shown)
        logger.info(shown)

    def close(self) -> None:
        """Ends the progress bar and the TensorBoard file."""
        if self._bar is not None:
            self._bar.close()
        self._events.close()

    def _write(self, row: rows.Row, prefix: str) -> None:
        values = rows.fields(row)
        # JSON has no NaN and no infinity, so they become null.
        finite = {name: value if value is None or math.isfinite(value) else None for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite, allow_nan=False) + "\n")
        step = values.pop("step")
        shown = [
            summary_pb2.Summary.Value(tag=prefix + _SECTION.sub(r"\1/", name), simple_value=value)
            for name, value in values.items()
            if value is not None
        ]
        self._events.add_event(
            event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=shown))
        )
        self._events.flush()

    def _show(self, short: str, whole: str) -> None:
        """Writes one line to log.txt and to the log, with the local time; a short line has no date."""
        now = time.localtime()
        whole = f"[{time.strftime('%Y-%m-%d %H:%M:%S', now)}] {whole}"
        self._append_log(whole)
        logger.info(f"{time.strftime('%H:%M:%S', now)}  {short}" if self._is_short else whole)

    def _append_log(self, text: str) -> None:
        with self._log_path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
