"""The picture of table `levers`: memory by kind and speed of every row, and beside them those of the base row.

A dashed line across a bar is the base that its change is against, as it ran just before and after the row, in a band
from its smallest to its largest figure; a bar that ends inside the band shows no measurable change.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from tftrain.bench.levers.rows import BASE
from tftrain.bench.table import Record

# The parts of a bar from left to right: words, colour and kinds of memory; the last part is the rest of the peak.
PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("weights, master weights, moments", "#1f4e79", ("weights", "master_weights", "moments")),
    ("gradients, their sums, messages", "#5b8db8", ("gradients", "accumulation", "communication")),
    ("TensorFlow itself", "#b9b9b9", ("baseline", "checkpoint_copy")),
    ("activations, temporaries", "#a9cce8", ()),
)
SPEED, LINE = "#d98e4a", "#333333"
PAPER = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 0.8}
BAR, INCHES_A_ROW = 0.66, 0.3


def draw(records: Sequence[Record], path: Path) -> None:
    """Draws two bars for each row: peak memory of the fullest rank in its parts, and samples/s.

    Args:
        records: of table `levers`.
        path: the png to write, 1760 pixels wide.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.4 + INCHES_A_ROW * len(records)), layout="constrained")
    memory, speed = figure.subplots(1, 2, sharey=True)
    positions = range(len(records))
    ends = [0.0] * len(records)
    for (words, colour, _), widths in zip(PARTS, zip(*map(parts, records), strict=True), strict=True):
        memory.barh(positions, widths, BAR, left=ends, color=colour, label=words)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    speed.barh(positions, [record["samples_per_sec"] for record in records], BAR, color=SPEED)
    for axes, name, digits in ((memory, "peak_gb", 2), (speed, "samples_per_sec", 1)):
        widest = max(max([record[name], *record.get(f"base_{name}", ())]) for record in records)
        axes.set_xlim(0, 1.22 * widest)
        for position, record in zip(positions, records, strict=True):
            words = label(record, name, digits)
            runs = record.get(f"base_{name}") or [record[name]]
            end = max([record[name], *runs]) + 0.014 * widest
            axes.text(end, position, words, va="center", fontsize=8, zorder=3, bbox=PAPER)
            if record["row"] != BASE:
                low, high, middle = min(runs), max(runs), statistics.median(runs)
                axes.barh(position, high - low, 0.95, left=low, color=LINE, alpha=0.18, linewidth=0)
                named = {"label": f"{BASE}, and its spread"} if position == len(records) - 1 else {}
                axes.vlines(middle, position - 0.48, position + 0.48, LINE, "--", linewidth=1, **named)
        axes.margins(y=0.015)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    memory.set_yticks(positions, [record["row"] for record in records], fontsize=9)
    memory.invert_yaxis()
    memory.set_title("Memory of the fullest rank (GB)", loc="left", fontweight="bold")
    speed.set_title("Samples per second, all ranks", loc="left", fontweight="bold")
    handles, labels = memory.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    figure.savefig(path, dpi=160, format="png")


def parts(record: Record) -> list[float]:
    """Returns the GB of each of `PARTS` of a row's fullest rank; together they are its peak."""
    found = [sum(record[f"memory_{kind}_bytes"] for kind in kinds) / 1e9 for _, _, kinds in PARTS[:-1]]
    return [*found, record["peak_gb"] - sum(found)]


def label(record: Record, name: str, digits: int) -> str:
    """Returns a bar's words: its figure, and its change against the base where there is one.

    Args:
        record: of a row.
        name: peak_gb or samples_per_sec.
        digits: of the figure, after the point.
    """
    change, figure = record.get(f"{name}_change"), f"{record[name]:.{digits}f}"
    if change is None:
        return figure
    return f"{figure} ({change:+.{digits}f})" if name == "peak_gb" else f"{figure} ({change:+.0f}%)"
