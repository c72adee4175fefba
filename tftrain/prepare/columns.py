"""The columns of a table that a preparation reads: a document's text and, if there is one, its id."""

import math
import re
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from tftrain.data.table_rows import Row
from tftrain.files.errors import DataError
from tftrain.host.text import listed

_COLUMNS_SHOWN = 20
_SURROGATE = re.compile("[\ud800-\udfff]")  # stands for a byte that is not UTF-8
_ARROW_TYPE = re.compile("(?<!None)Type$")
_UUID_BYTES = 16


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
                fault = f"the file has the columns {shown}; expected one with this name"
                raise DataError(f"{name}: --{flag}={column}: {fault}")

    def of(self, row: Row) -> tuple[str, str | None, str | None]:
        """Returns text, id and fault of a row. A fault says where the row is and what is wrong."""
        fault, found = row.fault, {}
        for column, convert, expected in ((self.text, _text, "text"), (self.id, _id, "text or a whole number")):
            if fault or column is None:
                continue
            value = row.values.get(column)
            found[column, convert] = convert(value)
            if column not in row.values:
                fault = f"no column {column}; the row has {listed([*row.values], _COLUMNS_SHOWN) or 'none'}"
            elif found[column, convert] is None:
                kind = str(value) if _ARROW_TYPE.search(type(value).__name__) else type(value).__name__
                fault = f"column {column}: {kind}; expected {expected}"
            elif _SURROGATE.search(found[column, convert]):
                fault = f"column {column}: {'bytes that are ' if isinstance(value, bytes) else ''}not UTF-8"
        if fault:
            return "", None, f"{row.place}: {fault}"
        return found[self.text, _text], found.get((self.id, _id)), None


def _text(value: Any) -> str | None:
    """Returns a value of a column as text, which may be bytes of UTF-8; None if it is none."""
    if isinstance(value, bytes):  # Texts of a fixed size are filled up.
        return value.rstrip(b"\0").decode(errors="surrogateescape")
    return value if type(value) is str else None


def _id(value: Any) -> str | None:
    """Returns a value of a column as an id: text, a whole number of any type, a UUID, or bytes; None if it is none."""
    if isinstance(value, bytes):
        text = _text(value)
        if text.isprintable() and not _SURROGATE.search(text):
            return text
        return str(uuid.UUID(bytes=value)) if len(value) == _UUID_BYTES else value.hex()
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        value = int(value)
    return str(value) if type(value) in (str, int) or isinstance(value, uuid.UUID) else None
