"""The report of a published table as one self-contained HTML file: chart, figures, order of the rows, notes, flags."""

import base64
from collections.abc import Sequence
from pathlib import Path

from tftrain.bench import host, picture
from tftrain.bench.published import chart, compare, order
from tftrain.bench.table import BenchTable, Record, RowOutcome
from tftrain.page import bars
from tftrain.page.bars import BarSeries, Panel
from tftrain.page.document import Cell, Grid, document

# Runs of one configuration differ by about as much in the published tables.
OTHERS_SPREAD = 100 * compare.MIN_DIFFERENCE
PANELS = tuple(
    Panel(
        title,
        (
            BarSeries(measured, "measured here", spread, "measured"),
            BarSeries(f"planned_{kind}_change_pct", "planned", OTHERS_SPREAD, "planned", f"planned_{kind}"),
            BarSeries(f"published_{kind}_change_pct", "published", OTHERS_SPREAD, "published", f"published_{kind}"),
        ),
        "+.1f",
        " %",
        better,
    )
    for title, kind, measured, spread, better in (
        ("Memory of the fullest device: change, %", "gb", "peak_gb_change_pct", "base_peak_spread_pct", -1),
        ("Samples/s: change, %", "speed", "samples_per_sec_change_pct", "base_spread_pct", 1),
    )
)
# Heading of a group of columns, and its columns: figure, heading, format, and the panel with its changes.
GROUPS = (
    ("Measured here", (("peak_gb", "GB", ".2f", 0), ("samples_per_sec", "samples/s", ".2f", 1))),
    ("Planned", (("planned_gb", "GB", ".1f", 0), ("planned_samples_per_sec_per_gpu", "samples/s/GPU", ".3g", 1))),
    ("Published", (("published_gb", "GB", ".1f", 0), ("published_samples_per_sec_per_gpu", "samples/s/GPU", ".3g", 1))),
)
FIGURES_NOTE = (
    "GB are 1e9 bytes. Below a figure is its change against the base row, and below a measured change the spread of "
    "the base. A dash: not measured, or not published."
)


def write(table: BenchTable, outcomes: Sequence[RowOutcome], path: Path) -> None:
    """Writes the page of a table with the outcomes of its rows, in order; the bars of many rows are below a picture."""
    records = [record for outcome in outcomes for record in outcome.records]
    base = _name(table, table.rows[0].name)
    changes = (
        "bars",
        bars.chart(PANELS, records, lambda record: (_name(table, record["row"]), record["settings"]), base),
    )
    scales = dict.fromkeys(record["scale"] for record in records if record.get("scale"))
    spread = "the range of the runs of the base row just before and after the row"
    meaning = bars.MEANING.format(base=f"the base row, {table.rows[0].name}", spread=spread)
    others = (
        f"Planned and published changes have a colour above {OTHERS_SPREAD:.0f} %, because published runs of one "
        "configuration differ too."
    )
    parts = [("about", f"Measured at scale {' and '.join(scales)} of the published sizes.")] if scales else []
    parts.append(("note", f"{meaning} {others}"))
    if len(records) <= chart.MAX_BARS:
        parts.append(changes)
    else:
        if chart.points(records):
            png = base64.b64encode(picture.png(chart.draw, records)).decode()
            parts.append(("image", ("planned over published samples/s of a GPU", png)))
        parts.append(("details", (f"Changes of all {len(records)} rows", [changes])))
    parts += [
        ("heading", "Figures"),
        ("note", FIGURES_NOTE),
        ("table", _figures(table, records)),
        *(("text", f"{line.capitalize()}.") for line in order.lines(records)),
        ("heading", "Notes"),
        ("table", Grid((), ("row", "text"), [(record["row"], _note(record)) for record in records])),
    ]
    path.write_text(document(table.name, f"{table.about}; {host.load()}", parts), encoding="utf-8")


def _figures(table: BenchTable, records: Sequence[Record]) -> Grid:
    """Returns the table of figures; groups without any are left out."""
    groups = [
        (number, heading, columns)
        for number, (heading, columns) in enumerate(GROUPS)
        if any(record.get(column[0]) is not None for record in records for column in columns)
    ]
    every = [(number, index, column) for number, _, columns in groups for index, column in enumerate(columns)]
    lines = []
    for record in records:
        status = record.get("status")
        failed = status if status and status not in ("measured", "planned only") else ""
        cells = [
            _cell(record, PANELS[panel], PANELS[panel].series[number], column, form)
            for number, _, (column, _, form, panel) in every
        ]
        lines.append([Cell(record["row"], failed=failed), *cells])
    pairs = zip(lines, records, strict=True)
    base = next((line for line, record in pairs if record["row"] == table.rows[0].name), None)
    heads = ["row", *(column[1] for *_, column in every)]
    kinds = ["row", *("" if index else "first" for _, index, _ in every)]
    return Grid(heads, kinds, lines, base, [(heading, len(columns)) for _, heading, columns in groups])


def _cell(record: Record, panel: Panel, series: BarSeries, column: str, form: str) -> Cell:
    value, change, small = record.get(column), series.value(record), []
    shown = "\N{EN DASH}" if value is None else value if isinstance(value, str) else f"{value:{form}}"
    if change is not None:
        small.append((panel.text(change), panel.verdict(series, record)))
        if isinstance(series.spread, str) and (spread := series.spread_of(record)) is not None:
            small.append((f"\N{PLUS-MINUS SIGN}{spread:.1f} %", None))
    return Cell(shown, small=small)


def _note(record: Record) -> Cell:
    small = [(record.get("note") or "", None)]
    return Cell(record.get("settings") or "", "", small, "", record.get("flags") or "", "flags of tftrain.run")


def _name(table: BenchTable, row: str) -> str:
    """Returns a row's name without the name of its own table."""
    return row.removeprefix(f"{table.name}/")
