"""Bars in HTML: a panel for each figure, a line for each record, and at the end of each bar the number that it shows.

A bar and its label come from one number. A change that is no larger than the spread of the base is noise: its bar is
pale, its label has no colour, and the spread is a band around zero.
"""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tftrain.page.document import words

Record = Mapping[str, Any]
Place = Callable[[float], float]  # of a value, in percent of the axis
MEANING = (
    "A bar is a change against {base}, and its label is the same number. The grey band is the spread of the base: "
    "{spread}. A change inside the band may be chance: its bar is pale and its label has no colour. Outside it, green "
    "is better and red is worse. Where the base has no known spread, there is no band and no colour."
)


@dataclass(frozen=True)
class Series:
    """The bars of one column.

    Attributes:
        column, name: entry of a record, for the length of the bar and its label; name in the legend, if there is one.
        spread: entry of a record with the spread of the base, in the column's unit, or that spread itself; None: the
            spread is unknown, so no change is called better or worse.
        kind: measured, planned or published, which chooses the colour.
        figure: entry of a record whose text, such as OOM, stands where there is no number.
    """

    column: str
    name: str = ""
    spread: str | float | None = None
    kind: str = "measured"
    figure: str = ""

    def value(self, record: Record) -> float | None:
        """Returns the record's number; None without one."""
        return _number(record.get(self.column))

    def spread_of(self, record: Record) -> float | None:
        """Returns the spread of the base that the record is compared with; None if it is unknown."""
        return _number(record.get(self.spread)) if isinstance(self.spread, str) else self.spread


@dataclass(frozen=True)
class Panel:
    """Bars with one axis.

    Attributes:
        title: the figure and its unit.
        series: a bar of each record for each of them.
        form, unit: the format of a number, such as "+.1f", and what follows it.
        better: the sign of a better change, 1 or -1; 0: the numbers are no changes.
    """

    title: str
    series: tuple[Series, ...]
    form: str
    unit: str = ""
    better: int = 0

    def verdict(self, series: Series, record: Record) -> str:
        """Returns what a record's change is: "better", "worse", "noise", or "" if there is nothing to say.

        Change and spread are compared as they are printed, so that no change is marked beside an equal spread.
        """
        value, spread = series.value(record), series.spread_of(record)
        if not self.better or value is None or spread is None:
            return ""
        if abs(float(f"{value:{self.form}}")) <= float(f"{spread:{self.form}}"):
            return "noise"
        return "better" if (value > 0) == (self.better > 0) else "worse"

    def text(self, value: float) -> str:
        """Returns a number as it is printed."""
        shown = f"{value:{self.form}}"
        if not float(shown):
            shown = shown.lstrip("+-")
        return shown.replace("-", "\N{MINUS SIGN}") + self.unit


def speed_panel(title: str, column: str = "speed_change_pct") -> Panel:
    """Returns the panel of a change of speed in percent, of which records have the spread as `base_spread_pct`."""
    return Panel(title, (Series(column, spread="base_spread_pct"),), "+.1f", " %", better=1)


def chart(
    panels: Sequence[Panel], records: Sequence[Record], name: Callable[[Record], tuple[str, str]], base: str = ""
) -> str:
    """Returns the chart, without series that no record has: panels next to each other, records from top to bottom.

    `name` returns a record's name and its settings; `base` is the name of the record that the others are compared with.
    """
    parts = ""
    for panel in panels:
        if series := [each for each in panel.series if any(each.value(record) is not None for record in records)]:
            parts += _panel(panel, series, records, name, base)
    return parts and f'<div class="panels">{parts}</div>'


def _panel(panel: Panel, series: Sequence[Series], records, name, base: str) -> str:
    numbers = [(each.value(record), each.spread_of(record)) for each in series for record in records]
    values = [value for value, _ in numbers if value is not None]
    bands = [spread for value, spread in numbers if panel.better and value is not None and spread is not None]
    low, high = min(0.0, *values, *(-spread for spread in bands)), max(0.0, *values, *bands)
    span = high - low if high > low else 1.0

    def at(value: float) -> float:
        return 100 * (value - low + 0.0) / span  # + 0.0: never minus zero

    rows = "".join(_row(panel, series, record, name(record), base, at) for record in records)
    signed = " signed" if low < 0 else ""
    keys = "".join(f'<span><i class="key {each.kind}"></i>{html.escape(each.name)}</span>' for each in series)
    head = f"<h3>{html.escape(panel.title)}</h3>" + (f'<p class="legend">{keys}</p>' if len(series) > 1 else "")
    return f'<section class="panel">{head}<div class="rows{signed}">{rows}</div></section>\n'


def _row(panel: Panel, series: Sequence[Series], record: Record, named: tuple[str, str], base: str, at: Place) -> str:
    name, settings = map(words, named)
    zero = f"left:{at(0):.3f}%"
    if base and named[0] == base:
        kind, shown = " base", ""
        lines = f'<div class="line"><span class="label" style="{zero}">base</span></div>'
    else:
        kind, shown = "", f' <span class="settings">{settings}</span>'
        lines = "".join(_line(panel, each, record, at) for each in series)
    text, zero = f'<div class="name"><b>{name}</b>{shown}</div>', f'<i class="zero" style="{zero}"></i>'
    return f'<div class="row{kind}">{text}<div class="lines">{zero}{lines}</div></div>\n'


def _line(panel: Panel, series: Series, record: Record, at: Place) -> str:
    value, spread, zero = series.value(record), series.spread_of(record), at(0)
    if value is None:
        figure = record.get(series.figure)
        word = html.escape(figure) if isinstance(figure, str) else "\N{EN DASH}"
        return f'<div class="line {series.kind}"><span class="label" style="left:{zero:.3f}%">{word}</span></div>'
    verdict = panel.verdict(series, record)
    band = ""
    if panel.better and isinstance(series.spread, str) and spread is not None:
        left = at(-spread)
        band = f'<i class="band" style="left:{left:.3f}%;width:{at(spread) - left:.3f}%"></i>'
    start, end = sorted((zero, at(value)))
    bar = f'<i class="bar" style="left:{start:.3f}%;width:{end - start:.3f}%"></i>'
    side = f"left:{end:.3f}%" if value >= 0 else f"right:{100 - start:.3f}%"
    label = f'<span class="label" style="{side}" data-value="{value:.6g}">{panel.text(value)}</span>'
    return f'<div class="line {series.kind} {verdict}">{band}{bar}{label}</div>'


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, float | int) and not isinstance(value, bool) else None
