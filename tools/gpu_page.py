"""The table of a part of tools/gpu_check.py: a CSV file that grows row by row until the part's time is over."""

import csv
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
    """A part's table, written after every row; each row ends with the device.

    Attributes:
        path: of the CSV file.
        columns: of the table, with units.
        seconds: of the part; in the last LAST_ROW of them no row begins.
        device: what the part ran on; the part fills it in.
    """

    path: Path
    columns: Sequence[str]
    seconds: float
    device: str = ""
    rows: list[Sequence] = field(default_factory=list)
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
            print(f"left out for lack of time, {len(late)} rows: {', '.join(late)}", file=sys.stderr)

    def add(self, row: Sequence | None) -> None:
        """Adds a row of words and numbers, or none if it is None."""
        if row is not None:
            self.rows.append(row)
            self.write()

    @property
    def failed(self) -> bool:
        """Whether a row has failed or is wrong."""
        return any(str(cell).startswith(("failed", "WRONG")) for row in self.rows for cell in row)

    def write(self) -> None:
        """Writes the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        with new.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*self.columns, "device"])
            for row in self.rows:
                writer.writerow([*row, *[""] * (len(self.columns) - len(row)), self.device])
        new.replace(self.path)
