"""Bars: a panel for each figure, a line for each record, and at the end of each bar the number that it shows.

A bar and its label come from one number. A change that is no larger than the spread of the base is noise: its bar is
pale, its label has no colour, and the spread is a band around zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
MEANING = (
    "A bar is a change against {base}, and its label is the same number. The grey band is the spread of the base: "
    "{spread}. A change inside the band may be chance: its bar is pale and its label has no colour. Outside it, green "
    "is better and red is worse. Where the base has no known spread, there is no band and no colour."
)


@dataclass(frozen=True)
class BarSeries:
    """The bars of one column."""

    column: str  # entry of a record, for the length of the bar and its label
    name: str = ""  # name in the legend, if there is one
    # Entry of a record with the spread of the base, in the column's unit, or that spread itself; None: the spread is
    # unknown, so no change is called better or worse.
    spread: str | float | None = None
    kind: str = "measured"  # or planned or published: chooses the colour
    figure: str = ""  # entry of a record whose text, such as OOM, stands where there is no number

    def value(self, record: Record) -> float | None:
        """Returns the record's number; None without one."""
        return _number(record.get(self.column))

    def spread_of(self, record: Record) -> float | None:
        """Returns the spread of the base that the record is compared with; None if it is unknown."""
        return _number(record.get(self.spread)) if isinstance(self.spread, str) else self.spread


@dataclass(frozen=True)
class Panel:
    """Bars with one axis."""

    title: str  # the figure and its unit
    series: tuple[BarSeries, ...]  # a bar of each record for each of them
    form: str  # the format of a number, such as "+.1f"
    unit: str = ""  # what follows the number
    better: int = 0  # the sign of a better change, 1 or -1; 0: the numbers are no changes

    def verdict(self, series: BarSeries, record: Record) -> str:
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


def speed_panel(title: str) -> Panel:
    """Returns the panel of `speed_change_pct`, of which records have the spread as `base_spread_pct`."""
    return Panel(title, (BarSeries("speed_change_pct", spread="base_spread_pct"),), "+.1f", " %", better=1)


def chart(
    panels: Sequence[Panel], records: Sequence[Record], name: Callable[[Record], tuple[str, str]], base: str = ""
) -> list[dict[str, Any]]:
    """Returns the `bars` of a page, panels side by side, without series that no record has; a record is a line.

    `name` returns a record's name and its settings. `base` is the name of the record that the others are compared with.
    """
    shown = []
    for panel in panels:
        if series := [each for each in panel.series if any(each.value(record) is not None for record in records)]:
            shown.append(_panel(panel, series, [(*name(record), record) for record in records], base))
    return shown


def _panel(
    panel: Panel, series: Sequence[BarSeries], named: Sequence[tuple[str, str, Record]], base: str
) -> dict[str, Any]:
    numbers = [(each.value(record), each.spread_of(record)) for each in series for *_, record in named]
    values = [value for value, _ in numbers if value is not None]
    bands = [spread for value, spread in numbers if panel.better and value is not None and spread is not None]
    low, high = min(0.0, *values, *(-spread for spread in bands)), max(0.0, *values, *bands)
    span = high - low if high > low else 1.0

    def at(value: float) -> float:
        """Returns where a value is, in percent of the axis."""
        return 100 * (value - low + 0.0) / span  # + 0.0: never minus zero

    rows = [
        {
            "name": name,
            "settings": settings,
            "is_base": bool(base) and name == base,
            "lines": [] if base and name == base else [_line(panel, each, record, at) for each in series],
        }
        for name, settings, record in named
    ]
    keys = [(each.name, each.kind) for each in series]
    return {"title": panel.title, "legend": keys, "rows": rows, "signed": low < 0, "zero": f"{at(0):.3f}"}


def _line(panel: Panel, series: BarSeries, record: Record, at: Callable[[float], float]) -> dict[str, Any]:
    value, spread, zero = series.value(record), series.spread_of(record), at(0)
    line: dict[str, Any] = {"kind": series.kind, "verdict": "", "band": None, "bar": None, "side": f"left:{zero:.3f}%"}
    if value is None:
        figure = record.get(series.figure)
        return line | {"text": figure if isinstance(figure, str) else "\N{EN DASH}"}
    if panel.better and isinstance(series.spread, str) and spread is not None:
        line["band"] = f"{at(-spread):.3f}", f"{at(spread) - at(-spread):.3f}"
    start, end = sorted((zero, at(value)))
    return line | {
        "verdict": panel.verdict(series, record),
        "bar": (f"{start:.3f}", f"{end - start:.3f}"),
        "side": f"left:{end:.3f}%" if value >= 0 else f"right:{100 - start:.3f}%",
        "value": f"{value:.6g}",
        "text": panel.text(value),
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, float | int) and not isinstance(value, bool) else None
