"""The report of a table as one HTML file that needs no other: what was measured, a chart, figures, why rows failed."""

from collections.abc import Sequence
from pathlib import Path

from tftrain.bench import host
from tftrain.bench.table import BenchTable, Column, Record, RowOutcome
from tftrain.page.bars import chart
from tftrain.page.document import Cell, Grid, document


def write(table: BenchTable, outcomes: Sequence[RowOutcome], path: Path) -> None:
    """Writes the page of a table with the outcomes of its rows, in order."""
    records = [record for outcome in outcomes for record in outcome.records]
    named = [each for each in table.columns if (each.name in table.labels if table.labels else each.digits is None)]
    charted = {each.column for panel in table.panels for each in panel.series}
    drawn = [record for record in records if charted & set(record)]
    bars = chart(table.panels, drawn, lambda record: _name(record, named), table.base)
    parts = [("note", table.chart_note), ("bars", bars)] if bars else []
    if records:
        parts += [("heading", "Figures"), ("table", figures(table, records))]
    parts += [("failed", f"{outcome.row}: {outcome.error}") for outcome in outcomes if outcome.error]
    path.write_text(document(table.name, f"{table.about}; {host.load()}", parts), encoding="utf-8")


def figures(table: BenchTable, records: Sequence[Record]) -> Grid:
    """Returns the table with all columns that some record has."""
    columns = [column for column in table.columns if any(record.get(column.name) is not None for record in records)]
    series = {each.column: (panel, each) for panel in table.panels for each in panel.series}

    def cell(column: Column, record: Record) -> Cell:
        panel, name = series.get(column.name, (None, None))
        return Cell(column.show(record), panel.verdict(name, record) if panel else "")

    lines = [[cell(column, record) for column in columns] for record in records]
    pairs = zip(lines, records, strict=True)
    base = next((line for line, record in pairs if table.base and record.get("row") == table.base), None)
    kinds = ["text" if column.digits is None else "number" for column in columns]
    return Grid([column.name for column in columns], kinds, lines, base)


def _name(record: Record, columns: Sequence[Column]) -> tuple[str, str]:
    """Returns a record's first column of text, and its other columns; numbers with the name of their column."""
    shown = [(column.digits is not None, column.name, column.show(record)) for column in columns]
    ordered = sorted((each for each in shown if each[2] != "-"), key=lambda each: each[0])  # text before numbers
    first, *others = (f"{name}={text}" if number else text for number, name, text in ordered)
    return first, ", ".join(others)
