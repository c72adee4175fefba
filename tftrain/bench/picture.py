"""What the pictures of all tables share: their look, their legend and their format."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Settings of matplotlib.
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "grid.color": "#dddddd",
    "legend.fontsize": 9,
    "legend.frameon": False,
}
PAPER = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 0.8}  # behind a label that lies on lines


def png(draw: Callable[[Sequence[Mapping[str, Any]]], Any], records: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the picture of records as png; `draw` makes a figure of matplotlib."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        draw(records).savefig(content, dpi=150, format="png")
    return content.getvalue()


def legend(figure: Any) -> None:
    """Adds a legend below the axes of a figure, with one entry for each label."""
    labelled = (axes.get_legend_handles_labels() for axes in figure.axes)
    entries = {label: handle for handles, labels in labelled for handle, label in zip(handles, labels, strict=True)}
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=len(entries))
