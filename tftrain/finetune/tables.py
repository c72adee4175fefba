"""Tables of examples: TSV, CSV, JSON, Parquet and Arrow files as rows that know their line."""

import collections
import csv
import hashlib
import io
import itertools
import logging
import math
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tftrain.data.table_rows import HEADER_AGAIN, Row, json_rows, separated_rows
from tftrain.files import encodings, strict_json
from tftrain.files.errors import DataError
from tftrain.files.reading import pointer
from tftrain.host.text import listed, reason
from tftrain.prepare import data_names
from tftrain.prepare.sources import errors_named

TEXT_COLUMNS = ("text", "sentence", "text_a", "sentence1")
PAIR_COLUMNS = ("text_pair", "text_b", "sentence2")
LABEL_COLUMNS = ("label", "labels")
NUMBER_COLUMNS = (*LABEL_COLUMNS, "score")
ARROW = (".parquet", ".arrow")
FORMATS = (".tsv", ".csv", ".jsonl", ".json", *ARROW)
T = TypeVar("T")


class TextExample(NamedTuple):
    """One text or several; its file and line, for messages."""

    place: str
    texts: tuple[str, ...]
    # A class, classes (multi_label), a number (regression, embedding) or scores of candidates (embedding), if any.
    label: str | tuple[str, ...] | float | tuple[float, ...] | None


class RowError(DataError):
    """A row can't be used, and others perhaps can."""


class FileNotes(list[tuple[int, str]]):
    """What a log should say of a file that was read: levels of `logging`, and texts."""

    def info(self, text: str) -> None:
        """Adds a line."""
        self.append((logging.INFO, text))

    def warning(self, text: str) -> None:
        """Adds a warning."""
        self.append((logging.WARNING, text))


def usable(path: str, read: Callable[[Any], T], items: Iterable[Any], skips: bool, notes: FileNotes | None) -> list[T]:
    """Returns what `read` makes of each item of a file.

    With `skips`, an item for which it raises DataError is left out; their number is added to `notes`, if there are any.

    Raises:
        RowError: an item can't be used, and `skips` is false.
        DataError: no item is left.
    """
    results, faults = [], []
    for item in items:
        try:
            results.append(read(item))
        except DataError as error:
            if not skips:
                raise RowError(str(error)) from error
            faults.append(str(error))
    if faults and notes is not None:
        notes.info(f"{path}: {len(faults)} damaged lines are left out, {len(results)} are read")
    if not results:
        raise DataError(f"{path}: no examples in it{f', the first is left out: {faults[0]}' if faults else ''}")
    return results


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


def digest(path: str) -> str:
    """Returns the SHA-256 of a file, or of the files of a folder one after another; raises DataError."""
    content = hashlib.sha256()
    for file in files_of(path):
        content.update(read_bytes(file))
    return content.hexdigest()


def is_arrow(path: str) -> bool:
    """Whether a path names Parquet or Arrow files: one, or a folder."""
    return path.lower().endswith(ARROW) or os.path.isdir(path)


def files_of(path: str) -> list[str]:
    """Returns the Parquet and Arrow files below a folder, such as `datasets` saves it; of a file itself.

    Raises:
        DataError: the folder has none, or several splits.
    """
    if not os.path.isdir(path):
        return [path]
    names = (str(file.relative_to(path)) for file in Path(path).rglob("*") if file.suffix.lower() in ARROW)
    files = sorted(name for name in names if not data_names.is_no_data(name))
    # Shards differ in numbers alone.
    splits = {re.sub(r"[-_.]?\d[^/]*$|\.\w+$|\d(?=.*/)", "", name): name for name in files}
    if len(splits) != 1:
        fault = (
            f"several splits, with {listed(list(splits.values()), 5)}" if splits else f"no {' or '.join(ARROW)} file"
        )
        raise DataError(f"{path}: {fault}; expected the folder or the file of one split")
    return [os.path.join(path, name) for name in files]


def read_text(path: str) -> str:
    """Returns the text of a file, without a byte order mark; without line feeds, carriage returns end its lines.

    Raises:
        DataError: the file can't be read, is not UTF-8, or a pointer of Git LFS is in its place.
    """
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start}: not UTF-8; {encodings.conversion(content)}") from error
    if encoding := encodings.encoding(text):
        raise DataError(f"{path}: {encoding}")
    return text if "\n" in text else text.replace("\r", "\n")


def read_table(
    path: str, header: bool = True, skips: bool = False, notes: FileNotes | None = None, scores: Collection[str] = ()
) -> list[Row]:
    """Reads a table; its format follows from the end of its name.

    A TSV file has no quotes, as in GLUE. A CSV file may have quoted fields with line breaks, and semicolons or tabs in
    place of commas. A line of JSONL is an object. JSON has a list of objects, alone or as "data". Empty lines do not
    count, nor does a line that repeats the header. A folder has Parquet or Arrow files, see `files_of`.

    Args:
        header: whether the first line of a TSV or CSV file has the names of the columns.
        skips, notes: see `usable`.
        scores: columns, in lower case, of Parquet and Arrow whose lists of fractions are no vectors, but are read.

    Raises:
        DataError: the file can't be read, has no row, or a line is damaged; the message names the line.
    """
    kind = Path(path).suffix.lower()
    if is_arrow(path):
        return usable(path, lambda row: row, _arrow_rows(path, scores), skips, notes)
    if kind not in FORMATS:
        raise DataError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    stream = io.BytesIO(read_text(path).encode())
    if kind in (".jsonl", ".json"):
        rows = _json_table(path)
    else:
        rows = list(separated_rows(stream, path, "\t" if kind == ".tsv" else ",", _check_names, header))
        headers = [row for row in rows if row.fault == HEADER_AGAIN]
        rows = [row for row in rows if row.fault != HEADER_AGAIN]
        if headers and notes is not None:
            notes.info(f"{headers[0].place}: the header again; {len(headers)} such lines are left out")
    swallowed = _swallowed(rows) if kind == ".csv" else {}

    def sound(row: Row) -> Row:
        if fault := row.fault or swallowed.get(row.place):
            raise DataError(f"{row.place}: {fault}")
        return row

    return usable(path, sound, rows, skips, notes)


def _arrow_rows(path: str, scores: Collection[str]) -> Iterator[Row]:
    from tftrain.prepare import arrow_tables

    for file in files_of(path):
        stream = io.BufferedReader(io.BytesIO(read_bytes(file)))
        with errors_named(file):
            read = arrow_tables.parquet_rows if stream.peek(4)[:4] == b"PAR1" else arrow_tables.arrow_rows
            yield from read(stream, file, None, scores=scores)


def json_values(path: str) -> list[Row]:
    """Returns what is in a JSON file: one value of the whole file, or an object for each line, or a row of Parquet.

    Raises:
        DataError: it can't be read, or is neither.
    """
    if is_arrow(path):
        return read_table(path)
    text, whole, problem = read_text(path), None, None
    try:
        if not path.lower().endswith(".jsonl") or text.lstrip().startswith("["):
            whole = strict_json.parse(text)
    except ValueError as error:
        problem = error
    if isinstance(whole, dict) or (isinstance(whole, list) and (not whole or isinstance(whole[0], dict))):
        return [Row(path, whole)]
    rows = list(json_rows(io.BytesIO(text.encode()), path, is_strict=True))
    if problem and (not rows or rows[0].fault):
        raise DataError(f"{path}: not JSON: {problem}") from problem
    return rows


def _json_table(path: str) -> list[Row]:
    """Returns the objects of a JSON file: one a line, or those of a list, which may be the field "data"."""
    rows = json_values(path)
    value = rows[0].values if len(rows) == 1 else None
    value = value.get("data") if isinstance(value, dict) else value
    if not isinstance(value, list):
        return rows
    places = ((f"{path}, row {number}", row) for number, row in enumerate(value, 1))
    return [Row(*each) if isinstance(each[1], dict) else Row(each[0], {}, "expected a JSON object") for each in places]


def _swallowed(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the faults of rows of CSV, by place, that a quote without an end has made of several.

    A line inside a field then has as many fields as the table, and its class, in the last or the first column, is that
    of other rows.
    """
    counts = collections.Counter((name, value) for row in rows for name, value in row.values.items())
    faults = {}
    for row in rows:
        inner = [line for value in row.values.values() for line in value.split("\n")[:-1]]
        for fields in itertools.chain(*(csv.reader(inner, delimiter=mark) for mark in ",;\t")):
            if 1 < len(fields) == len(row.values):
                first, *_, last = zip(row.values, fields, strict=True)
                if counts[last] or counts[first] > 1:
                    shown = f"{len(inner)} line breaks in a field, with rows such as {fields}"
                    faults[row.place] = f"{shown}; close the quote"
    return faults


def _check_names(names: list[str], path: str) -> None:
    if len(set(names)) < len(names):
        raise DataError(f"{path}, line 1: two columns have the same name; expected the names of the columns")


def text_of(row: Row, column: str) -> str:
    """Returns the text in a column; raises DataError if it is none."""
    value = row.values.get(column)
    if not isinstance(value, str):
        raise DataError(f"{row.place}: {column} is {strict_json.shown(value)}; expected a text")
    return value


def number(value: Any, what: str) -> float:
    """Returns a finite number, which may have a decimal comma; raises a DataError whose message begins with `what`."""
    try:
        text = str(value).strip()
        # 1,234 may be a thousand.
        text = text.replace(",", ".") if re.fullmatch(r"-?\d+,(\d{1,2}|\d{4,})", text) else text
        # Python reads 1_0 as 10.
        number = math.nan if isinstance(value, bool) or "_" in text else float(text)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{what} is {strict_json.shown(value)}; expected a number")
    return number


def columns_of(rows: Sequence[Row]) -> dict[str, Row]:
    """Returns the columns of a table, each with the first row that has it: lines of JSON may have different ones."""
    columns: dict[str, Row] = {}
    for row in rows:
        if not row.values.keys() <= columns.keys():
            columns |= {name: row for name in row.values if name not in columns}
    return columns


def column_of(rows: Sequence[Row], name: str | None, defaults: tuple[str, ...], flag: str | None = None) -> str:
    """Returns the column that a flag means: `name`, or else the first of `defaults` that the table has, in any case.

    Without a flag, the table may lack `name`. Raises a DataError if it has no such column.
    """
    columns = columns_of(rows)
    spelled = {column.strip().lower(): column for column in reversed(columns)} | {column: column for column in columns}
    names = [each for each in (name, *defaults) if each] if flag is None else (name,) if name else defaults
    if found := next((spelled[each] for each in names if each in spelled), None):
        return found
    if flag is None:
        raise DataError(f"{rows[0].place}: the columns are {', '.join(columns)}; expected one of {', '.join(names)}")
    wanted = f"--{flag}={name}" if name else f"--{flag} is not given"
    raise DataError(f"{rows[0].place}: {wanted}; expected one of its columns {', '.join(columns)}")
