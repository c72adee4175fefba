"""The rows of JSON Lines, CSV and TSV files. A row is a document, and a column has its text.

A file is read row by row, so memory does not depend on its size. A row that can't be used has a fault.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import msgspec

from tftrain.host.files import listed
from tftrain.input.errors import DataError

LONGEST_ROW = 1 << 26
# What "surrogateescape" makes of bytes that are not UTF-8.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_COLUMNS_SHOWN = 20


class Row(NamedTuple):
    """Text and id of a row, if it has no fault. A fault says where the row is and what is wrong."""

    text: str = ""
    id: str | None = None
    fault: str | None = None


class Columns(NamedTuple):
    """The columns that are read."""

    text: str
    id: str | None = None

    def check(self, present: Sequence[str], name: str) -> None:
        """Raises DataError unless a file has each column once."""
        for flag, column in (("text_column", self.text), ("id_column", self.id)):
            if column is not None and present.count(column) != 1:
                found = "has the columns" if column not in present else f"has the column {column} more than once:"
                shown = listed(present, _COLUMNS_SHOWN) or "none"
                raise DataError(f"{name}: --{flag}={column}: the file {found} {shown}; expected one with this name")


def json_rows(stream: BinaryIO, name: str, columns: Columns) -> Iterator[Row]:
    """Yields the rows of JSON Lines: each line is an object. Empty lines are no rows."""
    number = 0
    while line := stream.readline(LONGEST_ROW):
        number += 1
        if len(line) == LONGEST_ROW and not line.endswith(b"\n"):
            while (rest := stream.readline(LONGEST_ROW)) and not rest.endswith(b"\n"):
                pass
            yield Row(fault=f"{name}: line {number}: longer than {LONGEST_ROW >> 20} MiB")
        elif line := line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip():
            yield _json_row(line, f"{name}: line {number}", columns)


def _json_row(line: bytes, place: str, columns: Columns) -> Row:
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Row(fault=f"{place}: expected a JSON object: {error}")
    values = []
    for column, kind in ((columns.text, str), (columns.id, str | int)):
        if column is None:
            continue
        if column not in fields:
            shown = listed(list(fields), _COLUMNS_SHOWN) or "none"
            return Row(fault=f"{place}: no column {column}; the row has {shown}")
        try:
            values.append(msgspec.json.decode(fields[column], type=kind))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return Row(fault=f"{place}: column {column}: {error}")
    return Row(values[0], str(values[1]) if columns.id else None)


def delimited_rows(stream: BinaryIO, name: str, columns: Columns, delimiter: str) -> Iterator[Row]:
    """Yields the rows of CSV, or of TSV, which has no quotes; the first row has the names of the columns."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    csv.field_size_limit(LONGEST_ROW)
    quoting = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    reader = csv.reader(_lines(text, name), delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] = []
    while True:
        place = f"{name}: line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(fault=f"{place}: {error}")
            continue
        if not cells:
            continue
        if not header:
            header = cells
            columns.check(header, name)
            text_place = header.index(columns.text)
            id_place = header.index(columns.id or columns.text)
        elif len(cells) != len(header):
            yield Row(fault=f"{place}: {len(cells)} cells; expected {len(header)}, as in the first line")
        elif _NOT_UTF8.search(cells[text_place] + cells[id_place]):
            yield Row(fault=f"{place}: column {columns.text}: not UTF-8")
        else:
            yield Row(cells[text_place], cells[id_place] if columns.id else None)


def _lines(text: io.TextIOWrapper, name: str) -> Iterator[str]:
    number = 0
    while line := text.readline(LONGEST_ROW):
        number += 1
        if len(line) == LONGEST_ROW:
            raise DataError(f"{name}: line {number}: longer than {LONGEST_ROW >> 20} MiB; leave the file out")
        yield line
