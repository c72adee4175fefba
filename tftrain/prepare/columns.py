"""The columns of a table that a preparation reads: a document's text and, if there is one, its id."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tftrain.host.files import listed
from tftrain.input.errors import DataError
from tftrain.input.table_rows import Row

_COLUMNS_SHOWN = 20
_SURROGATE = re.compile("[\ud800-\udfff]")  # stands for a byte that is not UTF-8


class Columns(NamedTuple):
    """The names of the columns."""

    text: str
    id: str | None = None

    @property
    def names(self) -> list[str]:
        """The names, each once."""
        return list(dict.fromkeys(filter(None, self)))

    def check(self, present: Sequence[str], name: str) -> None:
        """Raises DataError unless a file has each column once."""
        for flag, column in (("text_column", self.text), ("id_column", self.id)):
            if column is not None and present.count(column) != 1:
                shown = listed(present, _COLUMNS_SHOWN) or "none"
                raise DataError(
                    f"{name}: --{flag}={column}: the file has the columns {shown}; expected one with this name"
                )

    def of(self, row: Row) -> tuple[str, str | None, str | None]:
        """Returns text, id and fault of a row. A fault says where the row is and what is wrong."""
        fault, values = row.fault, row.values
        for column, kinds, expected in ((self.text, (str,), "text"), (self.id, (str, int), "text or a whole number")):
            if fault or column is None:
                continue
            if column not in values:
                fault = f"no column {column}; the row has {listed([*values], _COLUMNS_SHOWN) or 'none'}"
            elif type(values[column]) not in kinds:
                fault = f"column {column}: {type(values[column]).__name__}; expected {expected}"
            elif _SURROGATE.search(str(values[column])):
                fault = f"column {column}: not UTF-8"
        if fault:
            return "", None, f"{row.place}: {fault}"
        return values[self.text], self.id and str(values[self.id]), None
