"""The cells of a published row, read with type and bounds; a ValueError names the column that is missing or wrong."""

import math
from collections.abc import Mapping, Sequence

from tftrain.host.units import GB, GIB

MAX_WHOLE = 10**9
PER_NODE = 8  # GPUs
SIZES = {  # the flag of each column with a size
    **{"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads"},
    **{"seq_len": "max_seq_length", "micro_batch": "micro_batch_size", "global_batch": "global_batch_size"},
    **{"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"},
}


class CsvRow:
    """One line of a file, by column."""

    def __init__(self, cells: Mapping[str, str]):
        self._cells = cells

    def text(self, column: str) -> str:
        """Returns a cell that may be empty."""
        if column not in self._cells:
            raise ValueError(f"{column}: expected this column")
        return self._cells[column]

    def note(self) -> str:
        """Returns the source's note; "" without such a column."""
        return self._cells.get("note", "")

    def whole(self, column: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_WHOLE) -> int:
        """Returns a whole number between inclusive bounds; without a `default` the cell may not be empty."""
        cell = self.text(column)
        if not cell and default is not None:
            return default
        value = _number(cell)
        if not value.is_integer() or not minimum <= value <= maximum:
            raise ValueError(f"{column}={cell}: expected a whole number from {minimum} to {maximum}")
        return int(value)

    def figure(self, column: str) -> float | None:
        """Returns a measured figure above 0; None for an empty cell and for OOM."""
        cell = self.text(column)
        if cell in ("", "OOM"):
            return None
        value = _number(cell)
        if not 0 < value < math.inf:
            raise ValueError(f"{column}={cell}: expected a number above 0, OOM, or nothing")
        return value

    def memory(self, column: str, unit: int = GIB) -> float | None:
        """Returns a measured memory in GB of 1e9 bytes; None for an empty cell and for OOM.

        `unit` is the number of bytes of the column's unit. What the sources call GB is GiB, as their tools print it.
        """
        figure = self.figure(column)
        return None if figure is None else figure * unit / GB

    def choice(self, column: str, choices: Sequence[str]) -> str:
        """Returns a cell whose text is one of `choices`."""
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
