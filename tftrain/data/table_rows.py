"""The rows of JSON Lines, CSV and TSV files, read one by one, so that memory does not depend on the size of a file."""

import codecs
import csv
import io
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, AnyStr, BinaryIO, NamedTuple

import msgspec

from tftrain.files import encodings, strict_json
from tftrain.files.errors import DataError

LONGEST_LINE = 1 << 26
HEADER_AGAIN = "the names of the columns again; remove the line"  # the fault of a row of files that were joined
# Commas and brackets in a row of JSON. A value takes up to two hundred bytes of memory.
MOST_MARKS = 1 << 21
_BEGINNING = 1 << 13
_SUSPECT = re.compile("[\0\x1b]")


class Row(NamedTuple):
    """A row of a table."""

    place: str  # file and line, for messages
    values: dict[str, Any]  # by the name of the column; of a table without a header by "0", "1" and so on
    fault: str | None = None  # why it can't be used


def json_rows(stream: BinaryIO, name: str, is_strict: bool = False) -> Iterator[Row]:
    """Yields the rows of JSON Lines: each line is an object. Empty lines are no rows.

    With `is_strict`, which takes longer, a name that occurs twice in an object is a fault. Else the last one counts.
    """
    readline = stream.readline
    if _end_of_line(stream) == "\r":
        text = io.TextIOWrapper(stream, encoding="latin-1", newline="\r")
        readline = lambda size: text.readline(size).encode("latin-1")  # noqa: E731
    for number, line in enumerate(_lines(readline, name), 1):
        where = f"{name}, line {number}"
        if not (line := line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip()):
            continue
        if sum(map(line.count, (b",", b"[", b"{"))) > MOST_MARKS:
            yield Row(where, {}, f"more than {MOST_MARKS} commas and brackets")
            continue
        try:
            values = msgspec.json.decode(line)
            if is_strict:
                strict_json.parse(line)
        except (ValueError, RecursionError) as error:
            yield Row(where, {}, f"not JSON: {error}")
        else:
            yield Row(where, values) if isinstance(values, dict) else Row(where, {}, "expected a JSON object")


def separated_rows(
    stream: BinaryIO, name: str, delimiter: str, check: Callable[[list[str], str], None], header: bool = True
) -> Iterator[Row]:
    """Yields the rows of CSV, or of TSV, which has no quotes. Empty lines are no rows.

    Bytes that are not UTF-8 are surrogates in the values.

    Args:
        check: is called with the names of the columns and the name of the file.
        header: whether the first row has the names of the columns.
    """
    names = None
    for number, fields, fault in _records(stream, name, delimiter):
        where = f"{name}, line {number}"
        if fault:
            yield Row(where, {}, fault)
            continue
        if names is None:
            names = fields if header else [str(column) for column in range(len(fields))]
            check(names, name)
            if header:
                continue
        if header and len(names) > 1 and fields[1:] == names[1:] and fields[0].removeprefix("\ufeff") == names[0]:
            yield Row(where, {}, HEADER_AGAIN)
        elif len(fields) == len(names):
            yield Row(where, dict(zip(names, fields, strict=True)))
        else:
            yield Row(where, {}, f"{len(fields)} fields; expected {len(names)}, as in the first line")


def _records(stream: BinaryIO, name: str, delimiter: str) -> Iterator[tuple[int, list[str], str | None]]:
    """Yields the number of the last line, the fields and the fault of each record."""
    is_tsv = delimiter == "\t"
    newline = _end_of_line(stream) if is_tsv else ""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline=newline)
    lines = _lines(text.readline, name)
    if is_tsv:
        for number, line in enumerate(lines, 1):
            if line := line.rstrip("\r\n"):
                yield number, line.split(delimiter), None
        return
    delimiter, lines = _delimited(lines, delimiter)
    csv.field_size_limit(max(LONGEST_LINE, csv.field_size_limit()))  # Python's own limit is 128 KiB.
    size = 0  # bytes of the record that is read, which may have many lines

    def counted() -> Iterator[str]:
        nonlocal size
        for number, line in enumerate(lines, 1):
            size += len(line)
            _check_length(size, f"{name}, line {number}")
            yield line

    reader, fields = csv.reader(counted(), delimiter=delimiter, strict=True), []
    while fields is not None:
        size = 0
        try:
            if fields := next(reader, None):
                yield reader.line_num, fields, None
        except csv.Error as error:
            yield reader.line_num, [], str(error)


def _delimited(lines: Iterator[str], delimiter: str) -> tuple[str, Iterator[str]]:
    """Returns what separates the columns of CSV, and its lines; a first line without a comma may have another mark."""
    first = next(lines, "")
    if named := re.fullmatch(r"sep=(.)\s*", first):  # Spreadsheets write this line.
        return named[1], itertools.chain(["\n"], lines)
    unquoted = re.sub(r'"[^"]*"', "", first)
    found = [each for each in (delimiter, ";", "\t", "|") if each in unquoted]
    return (found or [delimiter])[0], itertools.chain([first] if first else [], lines)


def _end_of_line(stream: BinaryIO) -> str:
    """Returns what ends the lines of a file: a carriage return in those of old systems, else a line feed."""
    beginning = stream.peek(1) if hasattr(stream, "peek") else stream.getvalue()[:_BEGINNING]
    return "\n" if b"\n" in beginning or b"\r" not in beginning[:-1] else "\r"


def _check_length(size: int, place: str) -> None:
    if size >= LONGEST_LINE:
        raise DataError(f"{place}: longer than {LONGEST_LINE >> 20} MiB; leave the file out")


def _lines(readline: Callable[[int], AnyStr], name: str) -> Iterator[AnyStr]:
    number = 0
    while line := readline(LONGEST_LINE):
        number += 1
        _check_length(len(line), f"{name}, line {number}")
        if isinstance(line, str) and _SUSPECT.search(line) and (encoding := encodings.encoding(line)):
            raise DataError(f"{name}, line {number}: {encoding}")
        yield line
