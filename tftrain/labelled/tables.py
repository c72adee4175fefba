"""Tables of examples: TSV, CSV and JSONL files as rows that know their line."""

import io
import logging
import os
import stat
from pathlib import Path

from tftrain.host.files import pointer, reason
from tftrain.input import seven_bit
from tftrain.input.errors import DataError
from tftrain.input.table_rows import Row, json_rows, separated_rows

logger = logging.getLogger(__name__)

FORMATS = (".tsv", ".csv", ".jsonl")


def read_bytes(path: str) -> bytes:
    """Returns what is in a file; raises DataError if it can't be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DataError(f"{path}: not a regular file")
        if words := pointer(path):
            raise DataError(f"{path}: {words}")
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {reason(error)}") from error


def read_text(path: str) -> str:
    """Returns the text of a file, without a byte order mark; raises DataError if it can't be read or is not UTF-8."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start}: not UTF-8") from error
    if encoding := seven_bit.encoding(text):
        raise DataError(f"{path}: {encoding}")
    return text


def read_table(path: str, header: bool = True, skips_damaged: bool = False, reports: bool = False) -> list[Row]:
    """Reads a table; its format follows from the end of its name.

    A TSV file has no quotes, as in GLUE. A CSV file may have quoted fields with line breaks. A line of JSONL is an
    object. Empty lines do not count.

    Args:
        header: whether the first line of a TSV or CSV file has the names of the columns.
        skips_damaged: whether damaged lines are left out.
        reports: whether the log has their number.

    Raises:
        DataError: the file can't be read, has no row, or a line is damaged; the message names the line.
    """
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        raise DataError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    text = read_text(path)
    stream = io.BytesIO(text.encode())
    if kind == ".jsonl":
        table_rows = json_rows(stream, path, is_strict=True)
    else:
        table_rows = separated_rows(stream, path, "\t" if kind == ".tsv" else ",", _check_names, header)
    rows, left_out = [], 0
    for row in table_rows:
        if not row.fault:
            rows.append(row)
        elif not skips_damaged:
            raise DataError(f"{row.place}: {row.fault}")
        else:
            left_out += 1
    if left_out and reports:
        logger.info(f"{path}: {left_out} damaged lines are left out, {len(rows)} are read")
    if not rows:
        raise DataError(f"{path}: no examples in it")
    return rows


def _check_names(names: list[str], path: str) -> None:
    if len(set(names)) < len(names):
        raise DataError(f"{path}, line 1: two columns have the same name; expected the names of the columns")


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
    for column in (name,) if name else defaults:
        if column in row.values:
            return column
    wanted = f"--{flag}={name}" if name else f"--{flag} is not given"
    raise DataError(f"{row.place}: {wanted}; expected one of its columns {', '.join(map(str, row.values))}")
