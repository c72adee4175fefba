"""The loss curve: the loss over the steps, beside the unigram entropy."""

import math
from pathlib import Path

from matplotlib.figure import Figure

from tftrain.report.metrics import read_rows
from tftrain.tasks.task import Mean

TRAIN, HELD_OUT, ENTROPY = "#3b6ea8", "#c8553d", "#555555"


def loss_curve(metrics_path: str | Path, png_path: str | Path, loss: Mean) -> None:
    """Draws training and held-out loss over the steps, beside the unigram entropy of the held-out text.

    A model that knows only the frequency of each token cannot reach a loss below that entropy. So the distance below
    the dashed line is what the model has learned from context.

    Args:
        metrics_path: metrics.jsonl.
        png_path: the picture to write, 1600 x 900 pixels.
        loss: which of the task's means.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: there is no row with a finite loss, or a line is damaged.
    """
    rows = read_rows(metrics_path)
    train = points(rows, loss.name)
    held_out = points(rows, f"eval_{loss.name}")
    entropies = points(rows, "eval_unigram_nats")
    if not train and not held_out:
        raise ValueError(f"{metrics_path}: no {loss.title} in {len(rows)} rows; train for --log_every steps first")

    figure = Figure(figsize=(10, 5.625), layout="constrained")
    axes = figure.add_subplot()
    if train:
        steps, losses = zip(*train, strict=True)
        if len(losses) < 5:
            label = f"training, {losses[-1]:.2f} at the end"
            axes.plot(steps, losses, color=TRAIN, linewidth=2, marker="o", label=label)
        else:
            axes.plot(steps, losses, color=TRAIN, linewidth=0.8, alpha=0.35, label="training")
            axes.plot(steps, smoothed(losses), color=TRAIN, linewidth=2, label="training, smoothed")
    if held_out:
        steps, losses = zip(*held_out, strict=True)
        label = f"held-out, {losses[-1]:.2f} at the end"
        axes.plot(steps, losses, color=HELD_OUT, linewidth=1.2, marker="o", markersize=5, zorder=3, label=label)
    if entropies:
        entropy = entropies[-1][1]
        label = f"unigram entropy of the held-out text, {entropy:.2f}"
        axes.axhline(entropy, color=ENTROPY, linestyle="--", linewidth=1.2, label=label)
    axes.set_title(f"{loss.title[0].upper()}{loss.title[1:]}", loc="left", fontsize=14, fontweight="bold")
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy (nats)")
    axes.set_xlim(left=0)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(png_path, dpi=160, format="png")


def points(rows: list[dict], name: str) -> list[tuple[int, float]]:
    """Returns (step, value) of each row with a finite number `name`."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]


def smoothed(values: tuple[float, ...]) -> list[float]:
    """Returns the moving average around each value, over a tenth of all values.

    The window is symmetric and shrinks towards the ends. An average over past values only would lag behind a falling
    loss.
    """
    half, last, averages = max(len(values) // 20, 1), len(values) - 1, []
    for i in range(len(values)):
        reach = min(half, i, last - i)
        window = values[i - reach : i + reach + 1]
        averages.append(math.fsum(window) / len(window))
    return averages
