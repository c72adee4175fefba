"""The picture of table `attention`: time and memory of each core over the sequence length, both axes logarithmic."""

from collections.abc import Sequence
from pathlib import Path

from tftrain.bench.table import Record

COLOURS = {"plain": "#8c8c8c", "softmax": "#d98e4a", "flash": "#1f4e79"}
LINES = {"fp32": "-", "bf16": "--"}


def draw(records: Sequence[Record], path: Path) -> None:
    """Draws a line for each core and dtype: both passes' time together, and the peak of memory over both.

    Args:
        records: of table `attention`.
        path: the png to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    axes_of = dict(zip(("time", "memory"), figure.subplots(1, 2), strict=True))
    for (core, dtype), points in lines(records).items():
        style = {"color": COLOURS[core], "linestyle": LINES[dtype], "marker": "o", "markersize": 4}
        for column, axes in enumerate(axes_of.values(), start=1):
            axes.plot(
                [point[0] for point in points], [point[column] for point in points], label=f"{core} {dtype}", **style
            )
    titles = {"time": "Forward and backward (ms)", "memory": "Peak memory (MB)"}
    lengths = sorted({record["seq_length"] for record in records})
    for name, axes in axes_of.items():
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xlabel("tokens of a sequence; tokens of the batch are constant")
        axes.set_title(titles[name], loc="left", fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.8)
    handles, labels = axes_of["time"].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    figure.savefig(path, dpi=160, format="png")


def lines(records: Sequence[Record]) -> dict[tuple[str, str], list[tuple[int, float, float]]]:
    """Returns by core and dtype, for each length with both passes: the length, milliseconds and MB.

    Cores with a causal mask have no line.
    """
    passes: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        passes.setdefault((record["core"], record["dtype"], record["seq_length"]), []).append(record)
    found: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for (core, dtype, length), both in sorted(passes.items()):
        if len(both) == 2 and core in COLOURS:
            point = length, sum(each["time_us"] for each in both) / 1000, max(each["peak_mb"] for each in both)
            found.setdefault((core, dtype), []).append(point)
    return found
