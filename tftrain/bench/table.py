"""The parts of a benchmark table: columns, rows as data, and a function that measures rows together."""

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.worker import MeasureError
from tftrain.page.bars import Panel

Record = dict[str, Any]
Say = Callable[[str], None]  # prints a line of progress
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Column:
    """A column of the report."""

    name: str  # also the name of an entry in a record
    digits: int | None = None  # decimals of its numbers, between which text is printed as it is; None: it has only text

    def show(self, record: Record) -> str:
        """Returns the record's entry as the report prints it; "-" without an entry."""
        value = record.get(self.name)
        if value is None:
            return "-"
        return str(value) if self.digits is None or isinstance(value, str) else f"{value:.{self.digits}f}"


def columns(words: str) -> tuple[Column, ...]:
    """Returns columns by name; a column of numbers has a colon and its digits, as in `op time_us:1`."""
    pairs = (word.partition(":") for word in words.split())
    return tuple(Column(name, int(digits) if digits else None) for name, _, digits in pairs)


@dataclass(frozen=True)
class TableRow:
    """One row's data; names are unique in a table, rows of one group are measured together, in alternation."""

    name: str
    group: str
    settings: Record = field(default_factory=dict)  # arguments of the table's `measure`


def cases(settings: Iterable[Record], name: str, group: str) -> tuple[TableRow, ...]:
    """Returns a row for each settings; `name` and `group` are patterns of them, such as {op}/{dtype}."""
    return tuple(TableRow(name.format(**each), group.format(**each), each) for each in settings)


@dataclass(frozen=True)
class RowOutcome:
    """The outcome of a row."""

    row: str
    records: list[Record]  # with the columns of the report; further entries appear only in the jsonl file and in json
    error: str | None = None  # the reason why there are no records
    final: bool = True  # whether `--resume` keeps it, if it has no error
    under: str = ""  # the flags that all rows of the report share


Measure = Callable[[list[TableRow], BenchConfig, Say], Iterator[RowOutcome]]


def each_row(records: Callable[[TableRow, BenchConfig, Say], list[Record]]) -> Measure:
    """Returns the `measure` of a table whose rows are measured one after the other, by `records`."""

    def measure(group: list[TableRow], config: BenchConfig, say: Say) -> Iterator[RowOutcome]:
        for row in group:
            say(f"{row.name}; {host.load()}")
            try:
                yield RowOutcome(row.name, records(row, config, say))
            except MeasureError as error:
                yield RowOutcome(row.name, [], str(error))

    return measure


def in_turns(
    rows: list[TableRow], rounds: int, measure: Callable[[TableRow], Answer], errors: dict[str, str]
) -> dict[str, list[Answer]]:
    """Measures rows in turns and returns the answers of each; leaves out rows in `errors`, and adds those that fail."""
    answers: dict[str, list[Answer]] = {row.name: [] for row in rows}
    for _ in range(rounds):
        for row in rows:
            if row.name not in errors:
                try:
                    answers[row.name].append(measure(row))
                except MeasureError as error:
                    errors[row.name] = str(error)
    return answers


@dataclass(frozen=True)
class BenchTable:
    """A table: data, and the function that measures a group of its rows."""

    name: str  # as in `--table`
    about: str  # one line for `--list`
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]  # those of one group are adjacent
    # Takes the chosen rows of one group, the program's configuration and a function that prints a line of progress;
    # yields an outcome for each row. A MeasureError is the outcome of the rows that are left.
    measure: Measure
    draw: Callable[[list[Record]], Any] | None = None  # a figure of matplotlib; see `tftrain.bench.picture`
    remarks: Callable[[list[Record]], list[str]] | None = None  # lines on all records together for stderr
    # Writes an html report of the table and its outcomes; None: that of `tftrain.bench.page`.
    page: "Callable[[BenchTable, list[RowOutcome], Path], None] | None" = None
    panels: tuple[Panel, ...] = ()  # the bars of that report
    chart_note: str = ""  # what these bars and the spread of their base mean
    labels: tuple[str, ...] = ()  # columns that name a bar; (): all columns of text
    base: str = ""  # the row that the others are compared with; "" if a record has its own, or there is none
    # Fills in the settings that depend on the machine: the scale and the number of ranks.
    settle: Callable[[BenchConfig], BenchConfig] | None = None
    row_by_row: bool = False  # whether rows are independent, so that an interrupted group resumes at the next row

    def outcomes(self, rows: list[TableRow], config: BenchConfig, say: Say) -> Iterator[RowOutcome]:
        """Measures rows of one group; yields an outcome for each, also if `measure` raises a MeasureError."""
        left = [row.name for row in rows]
        try:
            for outcome in self.measure(rows, config, say):
                left.remove(outcome.row)
                yield outcome
        except MeasureError as error:
            yield from (RowOutcome(name, [], str(error)) for name in left)

    def matching(self, globs: str) -> list[TableRow]:
        """Returns the rows whose name matches one of the globs, with or without the table's name before it."""
        patterns = [glob.strip() for glob in globs.split(",")]
        names = {row.name: (row.name, row.name.removeprefix(f"{self.name}/")) for row in self.rows}
        return [row for row in self.rows if any(fnmatch.filter(names[row.name], pattern) for pattern in patterns)]


def groups(rows: list[TableRow]) -> list[list[TableRow]]:
    """Returns the rows by group, in the order in which the groups first occur."""
    rows_of_group: dict[str, list[TableRow]] = {}
    for row in rows:
        rows_of_group.setdefault(row.group, []).append(row)
    return list(rows_of_group.values())
