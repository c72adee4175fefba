"""The cells of a published row, read with type and bounds; an error names the column."""

import math
from collections.abc import Mapping, Sequence

from tftrain.host.units import GB, GIB

MAX_WHOLE = 10**9


class CsvRow:
    """One line of a file, by column."""

    def __init__(self, cells: Mapping[str, str]):
        """Stores the cells; reading a missing column raises an error."""
        self._cells = cells

    def text(self, column: str) -> str:
        """Returns a cell that may be empty.

        Raises:
            ValueError: there is no such column.
        """
        if column not in self._cells:
            raise ValueError(f"{column}: expected this column")
        return self._cells[column]

    def note(self) -> str:
        """Returns the source's note; "" without such a column."""
        return self._cells.get("note", "")

    def whole(self, column: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_WHOLE) -> int:
        """Returns a whole number.

        Args:
            column: its name.
            default: value of an empty cell; None: the cell may not be empty.
            minimum, maximum: inclusive bounds.

        Raises:
            ValueError: there is no such column, or it holds no such number.
        """
        cell = self.text(column)
        if not cell and default is not None:
            return default
        value = _number(cell)
        if not value.is_integer() or not minimum <= value <= maximum:
            raise ValueError(f"{column}={cell}: expected a whole number from {minimum} to {maximum}")
        return int(value)

    def figure(self, column: str) -> float | None:
        """Returns a measured figure; None for an empty cell and for OOM.

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

    def memory(self, column: str, unit: int = GIB) -> float | None:
        """Returns a measured memory in GB of 1e9 bytes; None for an empty cell and for OOM.

        Args:
            column: its name.
            unit: bytes of the column's unit. What the sources call GB is GiB, as their tools print it.

        Raises:
            ValueError: there is no such column, or it holds no number above 0.
        """
        figure = self.figure(column)
        return None if figure is None else figure * unit / GB

    def choice(self, column: str, choices: Sequence[str]) -> str:
        """Returns a cell whose text is one of `choices`.

        Raises:
            ValueError: there is no such column, or it holds another text.
        """
        cell = self.text(column)
        if cell not in choices:
            raise ValueError(f"{column}={cell}: expected one of {', '.join(choices)}")
        return cell


def _number(cell: str) -> float:
    """Returns the number of a cell; nan if it is not a number."""
    try:
        return float(cell)
    except ValueError:
        return math.nan
