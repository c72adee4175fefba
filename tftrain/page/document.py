"""A page of HTML that needs no other file: a heading, a line of text and parts, in light and dark."""

import datetime
import html
import re
from collections.abc import Sequence

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
  margin-right: 6.2rem; } .signed .lines { margin-left: 6.2rem; }
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
.plot { display: block; width: 100%; max-width: 60rem; height: auto; margin-top: 1rem; }
.plot text { font-size: 13px; fill: var(--quiet); } .plot .grid { stroke: var(--line); }
.plot .curve { fill: none; stroke-width: 2; stroke: var(--measured); } .plot .end { fill: var(--measured); }
.plot .planned { stroke: var(--planned); } .plot .end.planned { fill: var(--planned); }
.plot .published { stroke: var(--published); } .plot .end.published { fill: var(--published); }
.plot .faint { stroke-width: 1; opacity: .5; stroke: var(--planned); } .plot .end.faint { fill: none; stroke: none; }
.key.faint { background: var(--planned); opacity: .5; } .key.edge { background: var(--quiet); height: 2px; }
.plot .curve.edge { stroke: var(--quiet); stroke-dasharray: 5 4; } .plot .end.edge { fill: none; stroke: none; }
.plot .dot { fill: var(--planned); opacity: .45; } .plot .frontier, .plot .ring { fill: none; stroke-width: 2; }
.plot .frontier { stroke: var(--measured); } .plot .ring { stroke: var(--text); }
.plot .edge { stroke: var(--quiet); stroke-dasharray: 5 4; }
img { display: block; width: 100%; max-width: 40rem; height: auto; margin-top: 1rem; }
"""


# No script runs and nothing is loaded, should markup ever get into a page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def document(title: str, about: str, parts: Sequence[str]) -> str:
    """Returns a page: a heading, one line of text below it, and parts in HTML."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    about = f"{about[:1].upper()}{about[1:]}. Made {now}."
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1><p class="about">{html.escape(about)}</p>
{"".join(parts)}
</body></html>
"""


def table(heads: Sequence[str], kinds: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a table; `kinds` are "text" or "number" for each column. The last cell of a line is HTML already."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for kind, cell in zip(kinds, cells, strict=True))

    body = "".join(f"<tr>{row([words(cell) for cell in cells[:-1]] + [cells[-1]], 'td')}</tr>\n" for cells in lines)
    return (
        f"<table><thead><tr>{row([words(head) for head in heads], 'th')}</tr></thead><tbody>\n{body}</tbody></table>\n"
    )


def words(text: object) -> str:
    """Returns a value's text as HTML that breaks between words, and after an underscore or a slash."""
    parts = re.sub(r"([_/])", r"\1<wbr>", html.escape(str(text))).split()
    return " ".join(f'<span class="word">{part}</span>' if "-" in part or "<wbr>" in part else part for part in parts)
