"""The report of a published table as one self-contained HTML file: picture, figures, notes, flags."""

import base64
import datetime
import html
from collections.abc import Sequence
from pathlib import Path

from tftrain.bench import host
from tftrain.bench.published import order
from tftrain.bench.table import Outcome, Record, Table

# Heading of a group of columns, and its columns: name, heading, digits (signed where it is a change).
GROUPS = (
    (
        "Measured here",
        (
            ("peak_gb", "GB", ".2f"),
            ("peak_gb_change_pct", "change %", "+.1f"),
            ("samples_per_sec", "samples/s", ".2f"),
            ("samples_per_sec_change_pct", "change %", "+.1f"),
            ("step_spread_pct", "step spread %", ".1f"),
            ("base_spread_pct", "base spread %", ".1f"),
        ),
    ),
    *(
        (
            heading,
            (
                (f"{kind}_gb", "GB", ".1f"),
                (f"{kind}_gb_change_pct", "change %", "+.1f"),
                (f"{kind}_samples_per_sec_per_gpu", "samples/s/GPU", ".3g"),
                (f"{kind}_speed_change_pct", "change %", "+.1f"),
            ),
        )
        for heading, kind in (("Planned, at the published scale", "planned"), ("Published", "published"))
    ),
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 96rem; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.about { color: #555; margin-top: .2rem; } img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e3e3e3; vertical-align: top; }
thead th { text-align: right; color: #555; font-weight: 600; border-bottom: 1px solid #999; }
thead th.text, td.text { text-align: left; } thead th.group { text-align: left; color: #1f4e79; border-bottom: 0; }
td { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.text { white-space: normal; min-width: 16rem; } td.first, th.first { border-left: 2px solid #c9d6e4; }
tbody th { text-align: left; font-weight: 400; white-space: nowrap; }
tr.base td, tr.base th { background: #f4f8fc; font-weight: 600; } td.status { color: #a33; text-align: left; }
td.good { color: #1b7a3a; } td.bad { color: #a33; } code { font-size: 12px; overflow-wrap: anywhere; }
"""


def write(table: Table, outcomes: Sequence[Outcome], path: Path) -> None:
    """Writes the page.

    Args:
        table: the table.
        outcomes: outcomes of its rows, in order.
        path: the file; the table's picture is read from the png of the same name.
    """
    picture = base64.b64encode(path.with_suffix(".png").read_bytes()).decode()
    records = [record for outcome in outcomes for record in outcome.records]
    path.write_text(page(table, records, picture), encoding="utf-8")


def page(table: Table, records: Sequence[Record], picture: str) -> str:
    """Returns the page; `picture` is a png in base64."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    scales = dict.fromkeys(record["scale"] for record in records if record.get("scale"))
    how = f" at scale {' and '.join(scales)} of the published sizes; {host.load()} when it was made" if scales else ""
    alt = f"Memory and speed of the rows of {table.name}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{table.name}</title><style>{STYLE}</style></head><body>
<h1>{table.name}</h1><p class="about">{html.escape(table.about.capitalize())}. Made {now}{html.escape(how)}.</p>
<img alt="{alt}" src="data:image/png;base64,{picture}">
<h2>Figures</h2>
<p>Changes are against the base row, which is shaded: here as it ran just before and after the row, else by its own
figure. A change here that is no larger than the base's spread says nothing. "-" is not measured, or not published.</p>
<div class="wide"><table><thead>{_heads()}</thead><tbody>
{"".join(_line(table, record) for record in records)}</tbody></table></div>
{"".join(f"<p>{html.escape(line.capitalize())}.</p>" for line in order.lines(records))}
<h2>Notes</h2>
<div class="wide"><table><tbody>
{"".join(_note(record) for record in records)}</tbody></table></div>
</body></html>
"""


def _heads() -> str:
    groups = "".join(f'<th class="group first" colspan="{len(columns)}">{name}</th>' for name, columns in GROUPS)
    names = "".join(
        f"<th{_first(position)}>{heading}</th>"
        for _, columns in GROUPS
        for position, (_, heading, _) in enumerate(columns)
    )
    ends = '<th class="text" rowspan="2">{}</th>'
    return f"<tr>{ends.format('row')}{ends.format('settings')}{groups}{ends.format('status')}</tr><tr>{names}</tr>"


def _first(position: int) -> str:
    return "" if position else ' class="first"'


def _line(table: Table, record: Record) -> str:
    base = ' class="base"' if record["row"] == table.rows[0].name else ""
    cells = "".join(
        _cell(record.get(name), form, position, name)
        for _, columns in GROUPS
        for position, (name, _, form) in enumerate(columns)
    )
    settings, status = (html.escape(record.get(name) or "") for name in ("settings", "status"))
    said = "" if status == "measured" else status
    ends = f'<th scope="row">{record["row"]}</th><td class="text">{settings}</td>'
    return f'<tr{base}>{ends}{cells}<td class="status">{said}</td></tr>\n'


def _cell(value: float | str | None, form: str, position: int, name: str) -> str:
    kinds = [] if position else ["first"]
    if isinstance(value, float | int) and name.endswith("change_pct") and abs(value) >= 0.05:
        less_is_better = "gb" in name
        kinds.append("good" if (value < 0) == less_is_better else "bad")
    shown = "-" if value is None else value if isinstance(value, str) else f"{value:{form}}"
    return f'<td class="{" ".join(kinds)}">{shown}</td>'


def _note(record: Record) -> str:
    note, given = html.escape(record.get("note") or ""), html.escape(record.get("flags") or "")
    command = f"<details><summary>flags of tftrain.run</summary><code>{given}</code></details>" if given else ""
    return f'<tr><th scope="row">{record["row"]}</th><td class="text">{note}{command}</td></tr>\n'
