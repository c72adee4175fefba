"""The picture of a published table: memory and speed of every row, published, planned and measured.

Published and planned figures are of the same machine and share an axis; figures measured here have their own. A dashed
line across a bar marks the base that its change is against: for figures measured here, the base row as it ran just
before and after. A table with too many rows for bars has points: planned over published samples/s.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

from tftrain.bench.picture import PAPER, legend
from tftrain.bench.table import Record

MAX_BARS = 60  # a table with more rows has points
NAMES = ("published_samples_per_sec_per_gpu", "planned_samples_per_sec_per_gpu")
PUBLISHED, PLANNED, MEASURED, GREY = "#1f4e79", "#8fb3d9", "#d98e4a", "#333333"
BAR, INCHES_A_ROW, LABEL = 0.36, 0.44, 60
# Title, format of a figure, and the columns that share the axis: published and planned ones, or one measured here.
PANELS = (
    ("Memory of the fullest device (GB)", ".1f", ("published_gb", "planned_gb")),
    ("Measured here: GB", ".2f", ("peak_gb",)),
    ("Samples/s of a device", ".3g", NAMES),
    ("Measured here: samples/s, all ranks", ".3g", ("samples_per_sec",)),
)
# Colour, name and offset from the row's middle of the bars of a panel, by their number.
LOOKS = {1: [(MEASURED, "measured here", 0.0)], 2: [(PUBLISHED, "published", -BAR / 2), (PLANNED, "planned", BAR / 2)]}


def draw(records: Sequence[Record]):
    """Draws bars, or points for more than MAX_BARS rows."""
    from matplotlib.figure import Figure

    if len(records) > MAX_BARS:
        return _points(Figure(figsize=(7, 7)), records)
    measured = any(number(record, "peak_gb") for record in records)
    figure = Figure(figsize=(17 if measured else 11, 1.6 + INCHES_A_ROW * len(records)))
    panels = PANELS if measured else PANELS[::2]
    every = figure.subplots(1, len(panels), sharey=True)
    for axes, panel in zip(every, panels, strict=True):
        _bars(axes, *panel, records)
    table = records[-1]["row"].partition("/")[0]
    every[0].set_yticks(range(len(records)), [label(record, table) for record in records], fontsize=7.5)
    every[0].invert_yaxis()
    legend(figure)
    return figure


def _bars(axes: Any, title: str, form: str, columns: Sequence[str], records: Sequence[Record]) -> None:
    """Draws one panel."""
    ends = {
        column: [(number(record, column) or 0.0, base_of(record, column) or 0.0) for record in records]
        for column in columns
    }
    widest = max((end for pairs in ends.values() for pair in pairs for end in pair), default=0.0) or 1.0
    height = BAR if len(columns) > 1 else 1.6 * BAR
    reach = 0.62 * height
    for column, (colour, name, beside) in zip(columns, LOOKS[len(columns)], strict=True):
        positions = [position + beside for position in range(len(records))]
        axes.barh(positions, [end for end, _ in ends[column]], height, color=colour, label=name)
        for position, record, (end, base) in zip(positions, records, ends[column], strict=True):
            shown = label_of_bar(record, column, form)
            axes.text(max(end, base) + 0.012 * widest, position, shown, va="center", fontsize=7, bbox=PAPER)
            if base:
                axes.vlines(base, position - reach, position + reach, GREY, "--", linewidth=0.9)
    axes.set_xlim(0, 1.28 * widest)
    axes.set_title(title, fontsize=10)
    axes.margins(y=0.01)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)


def points(records: Sequence[Record]) -> list[tuple[float, float]]:
    """Returns published and planned samples/s of a GPU, of the rows that have both."""
    pairs = [tuple(number(record, name) or 0 for name in NAMES) for record in records]
    return [pair for pair in pairs if min(pair) > 0]


def _points(figure: Any, records: Sequence[Record]):
    """Draws planned over published samples/s, both of a GPU, between lines 10% off."""
    pairs = points(records)
    axes = figure.subplots()
    axes.scatter(*zip(*pairs, strict=True), s=9, color=PUBLISHED, alpha=0.55, linewidths=0)
    ends = min(map(min, pairs)), max(map(max, pairs))
    axes.plot(ends, ends, color=GREY, linewidth=1)
    for factor in (0.9, 1.1):
        axes.plot(ends, [factor * end for end in ends], color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="published samples/s of a GPU", ylabel="planned samples/s of a GPU")
    axes.set_title(f"{len(pairs)} rows; dotted: 10% off", fontsize=10)
    return figure


def label(record: Record, table: str) -> str:
    """Returns a row's name without its own table's name, and its settings, in at most three lines."""
    name = record["row"].removeprefix(f"{table}/")
    return "\n".join(textwrap.wrap(f"{name}  {record['settings']}", LABEL, max_lines=3, placeholder=" …"))


def label_of_bar(record: Record, column: str, form: str) -> str:
    """Returns the text beside a bar: its figure, and in brackets its change against the base."""
    value = record.get(column)
    if not isinstance(value, float | int):
        return value or ("" if column in ("peak_gb", "samples_per_sec") else "-")
    change = record.get(change_of(column))
    return f"{value:{form}}" + (f" ({round(change):+d}%)" if change is not None else "")


def change_of(column: str) -> str:
    """Returns the column that holds another's change against the base."""
    return column.replace("samples_per_sec_per_gpu", "speed") + "_change_pct"


def base_of(record: Record, column: str) -> float | None:
    """Returns the figure of the base that a figure's change is against; None without a change."""
    value, change = number(record, column), record.get(change_of(column))
    return None if value is None or change is None else value / (1 + change / 100)


def number(record: Record, column: str) -> float | None:
    """Returns a figure; None if it is missing or the row did not fit."""
    value = record.get(column)
    return float(value) if isinstance(value, float | int) else None
