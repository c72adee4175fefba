"""The report of a table as one HTML file that needs no other: what was measured, a chart, figures, why rows failed."""

import datetime
import html
from collections.abc import Sequence
from pathlib import Path

from tftrain.bench import host
from tftrain.bench.bars import chart, words
from tftrain.bench.table import Column, Outcome, Record, Table

# Light and dark, and no wider than a window of 800 pixels.
STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1c2024; --quiet: #596168; --line: #d9dee3;
  --shade: #f1f5f9; --measured: #c9742a; --planned: #7fa6cc;
  --published: #24557f; --better: #17692f; --worse: #a52a2a; --band: #8a949e40; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --text: #e6e9ec; --quiet: #a3acb5; --line: #343b42;
  --shade: #1e242a; --measured: #dd8b45; --planned: #49719a; --published: #8dbbe6; --better: #6fcf8a; --worse: #f28b82;
  --band: #aab4be40; } }
* { box-sizing: border-box; }
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif;
  margin: 0 auto; max-width: 100rem; padding: 1.5rem 1.5rem 3rem; overflow-wrap: break-word; }
.word { display: inline-block; max-width: 100%; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: .95rem; margin: 0 0 .2rem; }
p { margin: .3rem 0; max-width: 56rem; } p.about, p.note { color: var(--quiet); }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 32rem), 1fr)); gap: 1.6rem 2.4rem;
  margin-top: 1rem; }
.panel { min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 0 1.2rem; font-size: 13px; color: var(--quiet); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
.row { display: grid; grid-template-columns: minmax(0, 13rem) minmax(0, 1fr); gap: .8rem; padding: .35rem 0;
  border-top: 1px solid var(--line); align-items: center; }
.row.base { background: var(--shade); } .name { font-size: 13px; line-height: 1.3; padding-left: .4rem; min-width: 0; }
.settings { color: var(--quiet); font-size: 12px; }
.lines { position: relative; align-self: stretch; display: flex; flex-direction: column; justify-content: center;
  margin-right: 5.4rem; } .signed .lines { margin-left: 5.4rem; }
.zero { position: absolute; top: -.35rem; bottom: -.35rem; width: 1px; background: var(--quiet); }
.line { position: relative; height: 1.25rem; }
.bar, .band { position: absolute; display: block; }
.bar { top: .2rem; bottom: .2rem; min-width: 1px; border-radius: 1px; }
.band { top: 0; bottom: 0; background: var(--band); }
.measured .bar, .key.measured { background: var(--measured); }
.planned .bar, .key.planned { background: var(--planned); }
.published .bar, .key.published { background: var(--published); }
.noise .bar { opacity: .4; }
.label { position: absolute; padding: 0 .35rem; font-size: 12px; line-height: 1.25rem; white-space: nowrap;
  font-variant-numeric: tabular-nums; color: var(--quiet); }
.line .label[data-value] { color: var(--text); } .noise .label[data-value] { color: var(--quiet); }
.better .label[data-value], td .better, td.better { color: var(--better); font-weight: 600; }
.worse .label[data-value], td .worse, td.worse { color: var(--worse); font-weight: 600; }
.noise, td .noise, td.noise { color: var(--quiet); }
table { border-collapse: collapse; font-size: 13px; line-height: 1.4; margin-top: .6rem; max-width: 100%; }
table + p { margin-top: .8rem; }
th, td { padding: .3rem .55rem; border-bottom: 1px solid var(--line); vertical-align: top; text-align: right; }
thead th { color: var(--quiet); font-weight: 600; vertical-align: bottom; border-bottom-color: var(--quiet); }
thead th.group { text-align: left; border-bottom: 0; color: var(--text); }
th.first, td.first { border-left: 2px solid var(--line); }
th.text, td.text, tbody th { text-align: left; font-weight: 400; }
td { font-variant-numeric: tabular-nums; } td.number { white-space: nowrap; }
td small { display: block; font-size: 12px; color: var(--quiet); }
tr.base td, tr.base th { background: var(--shade); }
.failed { color: var(--worse); } code { font-size: 12px; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--quiet); } details { font-size: 13px; }
@media (max-width: 60rem) { th, td { padding: .3rem .3rem; font-size: 12px; }
  td.text, tbody th { overflow-wrap: anywhere; } }
img { display: block; width: 100%; max-width: 40rem; height: auto; margin-top: 1rem; }
"""


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
    path.write_text(document(table.name, table.about, parts), encoding="utf-8")


def document(title: str, about: str, parts: Sequence[str]) -> str:
    """Returns a page: a heading, one line of text below it, and parts in HTML."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    about = f"{about[:1].upper()}{about[1:]}. Made {now}; {host.load()}."
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1><p class="about">{html.escape(about)}</p>
{"".join(parts)}
</body></html>
"""


def figures(table: Table, records: Sequence[Record]) -> str:
    """Returns the table with all columns that some record has."""
    columns = [column for column in table.columns if any(record.get(column.name) is not None for record in records)]
    series = {each.column: (panel, each) for panel in table.panels for each in panel.series}
    head = "".join(f'<th class="{_kind(column)}">{words(column.name)}</th>' for column in columns)
    lines = []
    for record in records:
        cells = ""
        for column in columns:
            panel, each = series.get(column.name, (None, None))
            kind = f"{_kind(column)} {panel.verdict(each, record) if panel else ''}".strip()
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
