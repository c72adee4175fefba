"""The picture of table `packing`: real examples a second, and the loss over the examples that were trained on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tftrain.bench.table import Record

COLOURS = {"not packed": "#8c8c8c", "buckets": "#5b9a68", "up to 3 in a row": "#d98e4a", "up to 8 in a row": "#1f4e79"}


def draw(records: Sequence[Record], path: Path) -> None:
    """Draws a bar and a curve for each row.

    Args:
        records: of table `packing`.
        path: the png to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    speed, loss = figure.subplots(1, 2, width_ratios=(1, 2))
    for place, record in enumerate(records):
        colour = COLOURS[label(record)]
        speed.bar(place, record["real_samples_per_sec"], color=colour)
        rate = record["real_samples_per_sec"]
        speed.annotate(f"{rate:.1f}", (place, rate), (0, 2), textcoords="offset points", ha="center")
        examples, means = curve(record)
        loss.plot(examples, means, color=colour, label=label(record))
    words = [label(record).replace(" in a row", "\nin a row") for record in records]
    speed.set_xticks(range(len(records)), words, fontsize=8)
    speed.set_title("Real examples a second", loc="left", fontweight="bold")
    loss.set_title("Masked-LM loss (nats)", loc="left", fontweight="bold")
    loss.set_xlabel("examples trained on")
    loss.legend(frameon=False)
    for axes in (speed, loss):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160, format="png")


def label(record: Record) -> str:
    """Returns the name of a row in the picture."""
    if record["packing"] == "greedy":
        return f"up to {record['max_sequences_per_pack']} in a row"
    return {"none": "not packed", "buckets": "buckets"}[record["packing"]]


def curve(record: Record, points: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Returns the losses of a record's steps as means over parts of equal length: examples, and nats."""
    losses = np.array([np.nan if loss is None else loss for loss in record["losses"]], float)
    parts = np.array_split(losses, min(points, len(losses)))
    steps = np.cumsum([len(part) for part in parts]) - np.array([len(part) for part in parts]) / 2
    return steps * record["real_samples_per_step"], np.array([np.nanmean(part) for part in parts])
