"""The picture of a schedule, planned or measured: a row for each stage, a box for each computation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tftrain.schedules.simulation import TimedAction, computations, step_time
from tftrain.schedules.table import ActionKind

# Colour and name in the legend.
BOXES = {
    ActionKind.FORWARD: ("#6f9fd8", "forward"),
    ActionKind.BACKWARD: ("#7dbb7d", "backward"),
    ActionKind.BACKWARD_INPUTS: ("#9fd08f", "backward for inputs"),
    ActionKind.BACKWARD_WEIGHTS: ("#e3a857", "backward for weights"),
}
IDLE, EDGE, TEXT = "#f1f1f1", "#ffffff", "#1a1a1a"
WIDTH, INCHES_A_STAGE, MARGINS, BOX = 11.0, 0.36, 1.0, 0.9
POINTS_AN_INCH, LARGEST_FONT, SMALLEST_FONT = 72, 9.0, 4.0


def draw(panels: Mapping[str, Sequence[TimedAction]], path: Path, unit: str = "") -> None:
    """Draws when each stage computes what; the number in a box is the micro-batch.

    Boxes of later chunks of a stage have lighter colours. A box that is too narrow has no number.

    Args:
        panels: events by title, as simulated or as measured; one below the other, on one time axis. Transfers are not
            drawn.
        path: the png to write, 1650 pixels wide.
        unit: the unit of time, for the axis.

    Raises:
        OSError: the file can't be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    computed = {title: computations(events) for title, events in panels.items()}
    shown = [event for events in computed.values() for event in events]
    stages, chunks = (1 + max(each) for each in zip(*((e.stage, e.action.chunk) for e in shown), strict=True))
    width = max(map(step_time, panels.values()))
    height = len(panels) * (MARGINS + INCHES_A_STAGE * stages)
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    every = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, (title, events) in zip(every, computed.items(), strict=True):
        _draw_panel(axes, events, stages, chunks, width)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    every[-1].set_xlabel(f"time ({unit})" if unit else "time")
    drawn = {event.action.kind for event in shown}
    handles = [Patch(color=colour, label=label) for kind, (colour, label) in BOXES.items() if kind in drawn]
    handles.append(Patch(color=IDLE, label="idle"))
    position = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": len(handles)}
    every[0].legend(handles=handles, frameon=False, fontsize=9, borderaxespad=0.2, handlelength=1.2, **position)
    # Without the version of matplotlib, equal pictures are equal files.
    figure.savefig(path, dpi=150, format="png", metadata={"Software": None})


def _draw_panel(axes: Any, computed: Sequence[TimedAction], stages: int, chunks: int, total: float) -> None:
    """Draws computations on an axis that ends after `total` units of time."""
    from matplotlib.colors import to_rgb

    begin, end_of_step = min(event.start for event in computed), max(event.end for event in computed)
    axes.barh(range(stages), end_of_step - begin, BOX, color=IDLE)
    for stage, action, start, end in computed:
        share = action.chunk / max(chunks, 2)
        colour = [part + share * (1 - part) for part in to_rgb(BOXES[action.kind][0])]
        axes.barh(stage, end - start, BOX, left=start - begin, color=colour, edgecolor=EDGE, linewidth=0.7)
        digits = str(action.micro_batch)
        width = 0.9 * WIDTH * POINTS_AN_INCH * (end - start) / total
        font = min(LARGEST_FONT, width / (0.75 * len(digits)))
        if font >= SMALLEST_FONT:
            middle = (start + end) / 2 - begin
            axes.text(middle, stage, digits, ha="center", va="center_baseline", fontsize=font, color=TEXT)
    axes.set_xlim(0, total)
    axes.set_ylim(stages - 0.5, -0.5)
    axes.set_yticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)
