"""The page of a part of tools/gpu_check.py: a table in Markdown that grows row by row until the part's time is over."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LAST_ROW = 0.15


class PartError(Exception):
    """A part cannot run here; the message says what is missing."""


@dataclass
class Page:
    """A part's table in Markdown, written after every row.

    Attributes:
        path, title: of the page.
        columns: of the table.
        command: that writes it.
        seconds: of the part; in the last LAST_ROW of them no row begins.
        device: what the part ran on; the part fills it in.
    """

    path: Path
    title: str
    columns: Sequence[str]
    command: str
    seconds: float
    device: str = ""
    rows: list[Sequence] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    now: Callable[[], float] = time.monotonic

    def __post_init__(self):
        self._begin = self.now()

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.seconds - (self.now() - self._begin)

    @property
    def is_late(self) -> bool:
        """Whether no further row may begin."""
        return self.left < LAST_ROW * self.seconds

    def fill(self, measurements: Iterable[tuple[str, Callable[[], Sequence | None]]]) -> None:
        """Adds a row for each measurement, its name and a function that returns it, while there is time.

        A row that fails is an error in the table, and the others go on.
        """
        late = []
        for name, measure in measurements:
            if self.is_late:
                late.append(name)
                continue
            try:
                self.add(measure())
            except Exception as error:
                print(f"{name}: {error}", file=sys.stderr)
                self.add([name, f"failed: {' '.join(str(error).split())[:200]}"])
        if late:
            self.note(f"Left out for lack of time, {len(late)} rows: {', '.join(late)}.")

    def add(self, row: Sequence | None) -> None:
        """Adds a row of words and numbers, or none if it is None."""
        if row is not None:
            self.rows.append(row)
            self.write()

    def note(self, words: str) -> None:
        """Adds a line under the table."""
        self.notes.append(words)
        self.write()

    @property
    def failed(self) -> bool:
        """Whether a row has failed or is wrong."""
        return any(str(cell).startswith(("failed", "WRONG")) for row in self.rows for cell in row)

    def write(self) -> None:
        """Writes the page in one step."""
        lines = [f"# {self.title}", "", f"`{self.command}` on {self.device}:", ""]
        for row in (self.columns, ["---"] * len(self.columns), *self.rows):
            cells = [str(cell).replace("|", "\\|") for cell in row]
            lines.append("| " + " | ".join([*cells, *[""] * (len(self.columns) - len(cells))]) + " |")
        lines += [line for note in self.notes for line in ("", note)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.path)
