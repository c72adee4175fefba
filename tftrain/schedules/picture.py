"""The picture of a schedule, planned or measured: a row for each stage, a box for each computation."""

from collections.abc import Sequence
from pathlib import Path

from tftrain.schedules.simulation import Event, computations, step_time
from tftrain.schedules.table import Kind

COLOURS = {
    Kind.FORWARD: "#6f9fd8",
    Kind.BACKWARD: "#7dbb7d",
    Kind.BACKWARD_INPUTS: "#9fd08f",
    Kind.BACKWARD_WEIGHTS: "#e3a857",
}
NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUTS: "backward for inputs",
    Kind.BACKWARD_WEIGHTS: "backward for weights",
}
IDLE, EDGE, TEXT = "#f1f1f1", "#ffffff", "#1a1a1a"
WIDTH, INCHES_A_STAGE, MARGINS, BOX = 11.0, 0.36, 1.0, 0.9
POINTS_AN_INCH, LARGEST_FONT, SMALLEST_FONT = 72, 9.0, 4.0


def draw(events: Sequence[Event], path: Path, title: str, unit: str = "") -> None:
    """Draws when each stage computes what; the number in a box is the micro-batch.

    Boxes of later chunks of a stage have lighter colours. A box that is too narrow has no number.

    Args:
        events: as simulated or as measured; transfers are not drawn.
        path: the png to write, 1650 pixels wide.
        title: the first line.
        unit: of time, for the axis.

    Raises:
        OSError: the file can't be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    computed = computations(events)
    stages, chunks = (1 + max(each) for each in zip(*((e.stage, e.action.chunk) for e in computed), strict=True))
    begin, total = min(event.start for event in computed), step_time(events)
    figure = Figure(figsize=(WIDTH, MARGINS + INCHES_A_STAGE * stages), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.barh(range(stages), total, BOX, color=IDLE)
    for stage, action, start, end in computed:
        colour = _lighter(COLOURS[action.kind], action.chunk / max(chunks, 2))
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
    axes.set_xlabel(f"time ({unit})" if unit else "time")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    kinds = [kind for kind in COLOURS if any(event.action.kind is kind for event in computed)]
    handles = [Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in kinds] + [Patch(color=IDLE, label="idle")]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": len(handles)}
    axes.legend(handles=handles, frameon=False, fontsize=9, borderaxespad=0.2, handlelength=1.2, **place)
    # Without the version of matplotlib, equal pictures are equal files.
    figure.savefig(path, dpi=150, format="png", metadata={"Software": None})


def _lighter(colour: str, share: float) -> str:
    """Returns a colour moved towards white by a share of 0 to 1."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (255 - part)):02x}" for part in parts)
