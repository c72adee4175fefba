"""The report of a table as one HTML file that needs no other: what was measured, a chart, figures, why rows failed."""

import html
from collections.abc import Sequence
from pathlib import Path

from tftrain.bench import host
from tftrain.bench.table import Column, Outcome, Record, Table
from tftrain.page.bars import chart, words
from tftrain.page.document import document


def write(table: Table, outcomes: Sequence[Outcome], path: Path) -> None:
    """Writes the page of a table with the outcomes of its rows, in order."""
    records = [record for outcome in outcomes for record in outcome.records]
    named = [each for each in table.columns if (each.name in table.labels if table.labels else each.digits is None)]
    charted = {each.column for panel in table.panels for each in panel.series}
    drawn = [record for record in records if charted & set(record)]
    bars = chart(table.panels, drawn, lambda record: _name(record, named), table.base)
    failed = [outcome for outcome in outcomes if outcome.error]
    parts = [
        f'<p class="note">{html.escape(table.chart_note)}</p>{bars}' if bars else "",
        f"<h2>Figures</h2>\n{figures(table, records)}" if records else "",
        *(f'<p class="failed">{words(outcome.row)}: {html.escape(outcome.error)}</p>' for outcome in failed),
    ]
    path.write_text(document(table.name, f"{table.about}; {host.load()}", parts), encoding="utf-8")


def figures(table: Table, records: Sequence[Record]) -> str:
    """Returns the table with all columns that some record has."""
    columns = [column for column in table.columns if any(record.get(column.name) is not None for record in records)]
    series = {each.column: (panel, each) for panel in table.panels for each in panel.series}
    head = "".join(f'<th class="{_kind(column)}">{words(column.name)}</th>' for column in columns)
    lines = []
    for record in records:
        cells = ""
        for column in columns:
            panel, name = series.get(column.name, (None, None))
            kind = f"{_kind(column)} {panel.verdict(name, record) if panel else ''}".strip()
            cells += f'<td class="{kind}">{words(column.show(record))}</td>'
        base = ' class="base"' if table.base and record.get("row") == table.base else ""
        lines.append(f"<tr{base}>{cells}</tr>\n")
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{''.join(lines)}</tbody></table>\n"


def _name(record: Record, columns: Sequence[Column]) -> tuple[str, str]:
    """Returns a record's first column of text, and its other columns; numbers with the name of their column."""
    shown = [(column.digits is not None, column.name, column.show(record)) for column in columns]
    ordered = sorted((each for each in shown if each[2] != "-"), key=lambda each: each[0])  # text before numbers
    first, *others = (f"{name}={text}" if number else text for number, name, text in ordered)
    return first, ", ".join(others)


def _kind(column: Column) -> str:
    return "text" if column.digits is None else "number"
