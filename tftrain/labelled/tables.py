"""Tables of examples: TSV, CSV and JSONL files as rows that know their line."""

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tftrain.host.files import reason
from tftrain.input.errors import DataError

FORMATS = (".tsv", ".csv", ".jsonl")
# One field of a CSV file; Python's own limit is 128 KiB.
MAX_FIELD = 1 << 24


class Row(NamedTuple):
    """A row of a table."""

    place: str  # file and line, for messages
    values: dict[str, Any]  # by the name of the column; of a table without a header by "0", "1" and so on


def read_text(path: str) -> str:
    """Returns the text of a file, without a byte order mark; raises DataError if it can't be read or is not UTF-8."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DataError(f"{path}: not a regular file")
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start}: not UTF-8") from error


def read_table(path: str, header: bool = True, skips_damaged: bool = False) -> list[Row]:
    """Reads a table; its format follows from the end of its name.

    A TSV file has no quotes, as in GLUE. A CSV file may have quoted fields with line breaks. A line of JSONL is an
    object. Empty lines do not count.

    Args:
        header: whether the first line of a TSV or CSV file has the names of the columns.
        skips_damaged: whether lines of TSV and CSV with another number of fields than the first are left out.

    Raises:
        DataError: the file can't be read, has no row, or a line is damaged; the message names the line.
    """
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        raise DataError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    text = read_text(path)
    found = _json_rows(path, text) if kind == ".jsonl" else _separated_rows(path, text, kind, header, skips_damaged)
    if not (rows := list(found)):
        raise DataError(f"{path}: no examples in it")
    return rows


def _json_rows(path: str, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not JSON: {error}") from error
        if not isinstance(values, dict):
            raise DataError(f"{place}: expected a JSON object")
        yield Row(place, values)


def _separated_rows(path: str, text: str, kind: str, header: bool, skips_damaged: bool) -> Iterator[Row]:
    names: list[str] | None = None
    for number, fields in _lines_of_fields(path, text, kind):
        place = f"{path}, line {number}"
        if names is None:
            names = fields if header else [str(column) for column in range(len(fields))]
            if len(set(names)) < len(names):
                raise DataError(f"{place}: two columns have the same name; expected the names of the columns")
            if header:
                continue
        if len(fields) != len(names):
            if skips_damaged:
                continue
            raise DataError(f"{place}: {len(fields)} fields; expected {len(names)}, as in the first line")
        yield Row(place, dict(zip(names, fields, strict=True)))


def _lines_of_fields(path: str, text: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the last line and the fields of each record."""
    if kind == ".tsv":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip("\r"):
                yield number, line.removesuffix("\r").split("\t")
        return
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        before = csv.field_size_limit(MAX_FIELD)  # of all readers of the process
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: {error}") from error
        finally:
            csv.field_size_limit(before)
        if fields:
            yield reader.line_num, fields


def text_of(row: Row, column: str) -> str:
    """Returns the text in a column; raises DataError if it is none."""
    value = row.values.get(column)
    if not isinstance(value, str):
        raise DataError(f"{row.place}: {column} is {value!r}; expected a text")
    return value


def column_of(row: Row, name: str | None, defaults: tuple[str, ...], flag: str) -> str:
    """Returns the name of the column that a flag means, given any row: `name`, or the first of `defaults` that it has.

    Raises:
        DataError: the table has no such column.
    """
    for each in (name,) if name else defaults:
        if each in row.values:
            return each
    given = f"--{flag}={name}" if name else f"--{flag} is not given"
    raise DataError(f"{row.place}: {given}; expected one of its columns {', '.join(map(str, row.values))}")
