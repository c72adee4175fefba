"""The report of a published table as one self-contained HTML file: chart, figures, order of the rows, notes, flags."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from tftrain.bench import host, picture
from tftrain.bench.published import chart, order
from tftrain.bench.table import Outcome, Record, Table
from tftrain.page import bars
from tftrain.page.bars import Panel, Series, words
from tftrain.page.document import document

# Runs of one configuration differ by about as much in the published tables.
OTHERS_SPREAD = 100 * order.PUBLISHED_SPREAD
PANELS = tuple(
    Panel(
        title,
        (
            Series(measured, "measured here", spread, "measured"),
            Series(f"planned_{kind}_change_pct", "planned", OTHERS_SPREAD, "planned", f"planned_{kind}"),
            Series(f"published_{kind}_change_pct", "published", OTHERS_SPREAD, "published", f"published_{kind}"),
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


def write(table: Table, outcomes: Sequence[Outcome], path: Path) -> None:
    """Writes the page of a table with the outcomes of its rows, in order; the bars of many rows are below a picture."""
    records = [record for outcome in outcomes for record in outcome.records]
    base = _name(table, table.rows[0].name)
    changes = bars.chart(PANELS, records, lambda record: (_name(table, record["row"]), record["settings"]), base)
    scales = dict.fromkeys(record["scale"] for record in records if record.get("scale"))
    spread = "the range of the runs of the base row just before and after the row"
    meaning = bars.MEANING.format(base=f"the base row, {table.rows[0].name}", spread=spread)
    many = len(records) > chart.MAX_BARS
    png = base64.b64encode(picture.png(chart.draw, records)).decode() if many and chart.points(records) else ""
    scaled = f"Measured at scale {' and '.join(scales)} of the published sizes." if scales else ""
    others = (
        f"Planned and published changes have a colour above {OTHERS_SPREAD:.0f} %, because published runs of one "
        "configuration differ too."
    )
    parts = [
        f'<p class="about">{html.escape(scaled)}</p>' if scaled else "",
        f'<p class="note">{html.escape(f"{meaning} {others}")}</p>',
        f'<img alt="planned over published samples/s of a GPU" src="data:image/png;base64,{png}">\n' if png else "",
        f"<details><summary>Changes of all {len(records)} rows</summary>{changes}</details>" if many else changes,
        f"<h2>Figures</h2>\n{_figures(table, records)}",
        *(f"<p>{html.escape(line.capitalize())}.</p>" for line in order.lines(records)),
        f"<h2>Notes</h2>\n<table><tbody>{''.join(_note(record) for record in records)}</tbody></table>",
    ]
    path.write_text(document(table.name, f"{table.about}; {host.load()}", parts), encoding="utf-8")


def _figures(table: Table, records: Sequence[Record]) -> str:
    """Returns the table of figures; groups without any are left out."""
    groups = [
        (number, heading, columns)
        for number, (heading, columns) in enumerate(GROUPS)
        if any(record.get(column[0]) is not None for record in records for column in columns)
    ]
    over = "".join(f'<th class="group first" colspan="{len(columns)}">{heading}</th>' for _, heading, columns in groups)
    headings = [(place, column[1]) for *_, columns in groups for place, column in enumerate(columns)]
    names = "".join(f"<th{_first(place)}>{words(heading)}</th>" for place, heading in headings)
    lines = "".join(_line(table, record, groups) for record in records)
    head = f'<tr><th class="text" rowspan="2">row</th>{over}</tr><tr>{names}</tr>'
    return (
        '<p class="note">GB are 1e9 bytes. Below a figure is its change against the base row, and below a measured '
        "change the spread of the base. A dash: not measured, or not published.</p>\n"
        f"<table><thead>{head}</thead>\n<tbody>{lines}</tbody></table>\n"
    )


def _line(table: Table, record: Record, groups) -> str:
    base = ' class="base"' if record["row"] == table.rows[0].name else ""
    status = record.get("status")
    failed = status and status not in ("measured", "planned only")
    said = f'<br><span class="failed">{html.escape(status)}</span>' if failed else ""
    cells = "".join(
        _cell(record, PANELS[panel], PANELS[panel].series[number], column, form, index)
        for number, _, columns in groups
        for index, (column, _, form, panel) in enumerate(columns)
    )
    return f'<tr{base}><th scope="row">{words(record["row"])}{said}</th>{cells}</tr>\n'


def _cell(record: Record, panel: Panel, series: Series, column: str, form: str, index: int) -> str:
    value, change = record.get(column), series.value(record)
    shown = "\N{EN DASH}" if value is None else html.escape(value) if isinstance(value, str) else f"{value:{form}}"
    if change is not None:
        shown += f'<small><span class="{panel.verdict(series, record)}">{panel.text(change)}</span></small>'
        if isinstance(series.spread, str) and (spread := series.spread_of(record)) is not None:
            shown += f"<small>\N{PLUS-MINUS SIGN}{spread:.1f} %</small>"
    return f"<td{_first(index)}>{shown}</td>"


def _first(index: int) -> str:
    return "" if index else ' class="first"'


def _note(record: Record) -> str:
    note, flags = html.escape(record.get("note") or ""), html.escape(record.get("flags") or "")
    command = f"<details><summary>flags of tftrain.run</summary><code>{flags}</code></details>" if flags else ""
    settings = html.escape(record.get("settings") or "")
    name = words(record["row"])
    return f'<tr><th scope="row">{name}</th><td class="text">{settings}<small>{note}</small>{command}</td></tr>\n'


def _name(table: Table, row: str) -> str:
    """Returns a row's name without the name of its own table."""
    return row.removeprefix(f"{table.name}/")
