"""The cells of a published row: read with type and bounds, and named with their column where they are wrong."""

import math
from collections.abc import Mapping, Sequence

LARGEST = 10**9


class CsvRow:
    """One line of a file, by column."""

    def __init__(self, cells: Mapping[str, str]):
        """Takes the texts as they are; a column that is not there is refused when it is read."""
        self._cells = cells

    def text(self, column: str) -> str:
        """Returns a cell that may be empty.

        Raises:
            ValueError: there is no such column.
        """
        if column not in self._cells:
            raise ValueError(f"{column}: expected such a column")
        return self._cells[column]

    def note(self) -> str:
        """Returns the source's note; there need not be such a column."""
        return self._cells.get("note", "")

    def whole(self, column: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """Returns a whole number.

        Args:
            column: its name.
            default: of an empty cell; None where it may not be empty.
            least, most: inclusive bounds.

        Raises:
            ValueError: there is no such column, or it holds no such number.
        """
        cell = self.text(column)
        if not cell and default is not None:
            return default
        value = _number(cell)
        if not value.is_integer() or not least <= value <= most:
            raise ValueError(f"{column}={cell}: expected a whole number from {least} to {most}")
        return int(value)

    def figure(self, column: str) -> float | None:
        """Returns a measured figure; None where nothing is stated, or OOM.

        Raises:
            ValueError: there is no such column, or it holds no number above 0.
        """
        cell = self.text(column)
        if cell in ("", "OOM"):
            return None
        value = _number(cell)
        if not 0 < value < math.inf:
            raise ValueError(f"{column}={cell}: expected a number above 0, OOM, or nothing")
        return value

    def choice(self, column: str, choices: Sequence[str]) -> str:
        """Returns a cell that holds one of some words.

        Raises:
            ValueError: there is no such column, or it holds another word.
        """
        cell = self.text(column)
        if cell not in choices:
            raise ValueError(f"{column}={cell}: expected one of {', '.join(choices)}")
        return cell


def _number(cell: str) -> float:
    """Returns a number; nan for what is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan
