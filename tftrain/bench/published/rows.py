"""Published rows of the reference tables, or of any file in one of their formats."""

import csv
import io
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from tftrain.bench.published.csv_row import CsvRow
from tftrain.bench.published.formats import FORMATS
from tftrain.bench.published.row import PublishedRow
from tftrain.config.fields import ConfigError, Problem
from tftrain.config.parallel import schedule_problems
from tftrain.host.text import reason

REFERENCE = (
    *("encoder_a100.csv", "decoder_3d_a100.csv", "decoder_3d_a64fx.csv", "decoder_sweep_a100.csv"),
    *("decoder_selene_a100.csv", "decoder_zero3.csv"),
)
# By its note 'the row "base" of every other Large table'. All other tables begin with their own base.
LARGE_BASE = "large_precision/04"


def read_reference() -> list[PublishedRow]:
    """Returns every row of the reference tables that come with the planner."""
    return [row for name in REFERENCE for row in read_text(reference_text(name), name)[0]]


def by_table() -> dict[str, tuple[PublishedRow, ...]]:
    """Returns the rows of every reference table by its name; the first row is the base of the others."""
    tables: dict[str, list[PublishedRow]] = {}
    for row in read_reference():
        tables.setdefault(row.table, []).append(row)
    base = next(row for rows in tables.values() for row in rows if row.name == LARGE_BASE)
    for table, rows in tables.items():
        if table.startswith("large_") and base not in rows:
            rows.insert(0, base)
    return {table: tuple(rows) for table, rows in tables.items()}


def reference_text(name: str) -> str:
    """Returns the text of one of the files REFERENCE."""
    return (resources.files("tftrain.bench.published") / "reference" / name).read_text(encoding="utf-8")


def read_file(path: str) -> tuple[list[PublishedRow], list[Problem]]:
    """Returns the rows of a file in one of the reference formats, and the problems of lines that can't be read.

    Raises a ConfigError if the file can't be read, if its columns belong to no format, or if it has no rows.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # a spreadsheet's byte order mark is no part of a name
    except (OSError, ValueError) as error:
        raise ConfigError([Problem("rows_file", path, f"expected a readable CSV file: {reason(error)}")]) from error
    return read_text(text, path)


def read_text(text: str, name: str) -> tuple[list[PublishedRow], list[Problem]]:
    """Returns the rows of the text of the file `name`; see `read_file`."""
    try:
        lines = list(_lines(text))
    except csv.Error as error:
        raise ConfigError([Problem("rows_file", name, f"expected a readable CSV file: {error}")]) from error
    columns = lines[0][1] if lines else []
    read = next((read for needed, read in FORMATS if needed <= set(columns)), None)
    if read is None:
        formats = "; or ".join(", ".join(sorted(needed)) for needed, _ in FORMATS)
        raise ConfigError([Problem("rows_file", name, f"expected columns of a reference table, among them {formats}")])
    if len(lines) == 1:
        raise ConfigError([Problem("rows_file", name, "expected rows below the columns")])
    rows, problems = [], []
    for number, cells in lines[1:]:
        try:
            rows.append(_row(columns, cells, read))
        except ValueError as error:
            problems.append(Problem("rows_file", f"line {number} of {name}", str(error)))
    return rows, problems


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the stripped cells of each line that is not empty."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    for cells in reader:
        if any(stripped := [cell.strip() for cell in cells]):
            yield reader.line_num, stripped


def _row(columns: list[str], cells: list[str], read: Callable[[CsvRow], PublishedRow]) -> PublishedRow:
    """Returns the row of a line, which may lack cells at its end.

    Raises a ValueError if a cell is wrong, or if cells contradict each other.
    """
    if len(cells) > len(columns):
        raise ValueError(f"{len(cells)} cells; expected {len(columns)}, one for each column")
    by_column = dict.fromkeys(columns, "") | dict(zip(columns, cells, strict=False))
    row = read(CsvRow(by_column))._replace(cells=by_column)
    work = row.workload
    width, heads = work.model.width, work.model.attention_heads
    if width % heads:
        raise ValueError(f"heads={heads}: expected a divisor of hidden={width}")
    if work.global_batch < work.dp * work.micro_batch:
        whole = f"micro_batch={work.micro_batch} on each of dp={work.dp}"
        raise ValueError(f"global_batch={work.global_batch}: expected at least {whole}")
    if problems := schedule_problems(work.schedule, work.pp, round(work.micro_batches), work.chunks):
        raise ValueError("; ".join(map(str, problems)))
    return row
