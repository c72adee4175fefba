"""Pictures of a run: the loss over the steps beside the unigram entropy, scores, and which classes are confused."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tftrain.config.optimizer import OptimizerConfig
from tftrain.config.phases import Timeline
from tftrain.observe.metrics import read_rows
from tftrain.optim.schedule import learning_rate, run_length
from tftrain.tasks.task import Mean

MOST_NAMED_CLASSES, MOST_COUNTED_CLASSES = 40, 20
TRAIN, HELD_OUT, ENTROPY = "#3b6ea8", "#c8553d", "#555555"


def loss_curve(metrics_path: str | Path, png_path: str | Path, loss: Mean) -> None:
    """Draws training and held-out loss over the steps, beside the unigram entropy of the held-out text.

    A model that knows only the frequency of each token can't reach a loss below that entropy. So the distance below the
    dashed line is what the model has learned from context. The picture has 1600 x 900 pixels.

    Raises an OSError if a file can't be read or written, and a ValueError if no row has a finite loss or a line is
    damaged.
    """
    rows = read_rows(metrics_path)
    train = points(rows, loss.name)
    held_out = points(rows, f"eval_{loss.name}")
    entropies = points(rows, "eval_unigram_nats")
    if not train and not held_out:
        raise ValueError(f"{metrics_path}: no {loss.title} in {len(rows)} rows; train for --log_every steps first")

    axes = axes_of(f"{loss.title[0].upper()}{loss.title[1:]}")
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
    axes.set_ylabel("cross-entropy (nats)")
    axes.set_axisbelow(True)
    _save(axes, png_path)


def score_curve(metrics_path: str | Path, png_path: str | Path, scores: Sequence[str]) -> None:
    """Draws the scores of evaluations over the steps, if there are any, as `loss_curve` does and with its errors.

    `scores` has their names, with "eval_" before each.
    """
    rows = read_rows(metrics_path)
    curves = {name: points(rows, name) for name in scores}
    if not any(curves.values()):
        return
    axes = axes_of("Scores of the held-out examples")
    for name, curve in curves.items():
        if curve:
            steps, values = zip(*curve, strict=True)
            label = f"{name.removeprefix('eval_').replace('_', ' ')}, {max(values):.4g} at best"
            axes.plot(steps, values, linewidth=1.6, marker="o", markersize=5, label=label)
    _save(axes, png_path)


def schedule_curve(optimizer: OptimizerConfig, last: int, timeline: Timeline, png_path: str | Path) -> None:
    """Draws the learning rate of a run's updates and, if it grows, the batch; raises an OSError like `loss_curve`."""
    length = run_length(last, timeline)
    steps = np.unique(np.linspace(0, last, min(last + 1, 1000)).round().astype(np.int64))
    rates = [float(learning_rate(optimizer, length, tf.constant(step, tf.int64))) for step in steps]
    axes = axes_of(f"Learning rate: --schedule={optimizer.schedule}")
    axes.plot(steps, rates, color=TRAIN, linewidth=2, label=f"learning rate, {max(rates):.3g} at most")
    if len(stages := timeline.stages()) > 1:
        begins = [*(stage.first_step for stage in stages), last]
        sizes = [stage.batch_size for stage in stages]
        batch = axes.twinx()
        batch.step(begins, [*sizes, sizes[-1]], where="post", color=HELD_OUT, linewidth=1.2)
        batch.set_ylabel("global batch (samples)", color=HELD_OUT)
        batch.set_ylim(bottom=0)
    axes.set_ylim(bottom=0)
    _save(axes, png_path)


def axes_of(title: str, across: str = "step") -> Any:
    """Returns the axes of a picture of 1600 x 900 pixels, whose horizontal axis has the label `across`."""
    axes = _figure(10, 5.625).add_subplot()
    axes.set_title(title, loc="left", fontsize=14, fontweight="bold")
    axes.set_xlabel(across)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # Half a second of each start, if it were loaded there.

    return Figure(figsize=(width, height), layout="constrained")


def _save(axes: Any, png_path: str | Path) -> None:
    axes.set_xlim(left=0)
    axes.legend(frameon=False)
    axes.figure.savefig(png_path, dpi=160, format="png")


def confusion_matrix(labels: Sequence[str], counts: np.ndarray, png_path: str | Path) -> None:
    """Draws how many examples of each class (row) were taken for each (column).

    `counts` is int [classes, classes]. Colours are shares of a row, blue for right and red for wrong: a class of 9
    examples counts as much as one of 200. Raises an OSError if the picture can't be written.
    """
    size = min(4 + 0.5 * len(labels), 20)
    figure = _figure(size + 2, size)
    axes = figure.add_subplot()
    totals = counts.sum(1)
    shares = counts / np.maximum(totals, 1)[:, None]
    signed = np.where(np.eye(len(labels), dtype=bool), shares, -shares)
    bar = figure.colorbar(axes.imshow(signed, cmap="RdBu", vmin=-1, vmax=1), ax=axes, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.ax.set_yticklabels(["100% wrong", "50% wrong", "0%", "50% right", "100% right"])
    bar.set_label("share of the label's examples")
    if len(labels) <= MOST_NAMED_CLASSES:
        ticks = range(len(labels))
        # Two dollars in a class are no formula.
        axes.set_xticks(ticks, labels, rotation=90, parse_math=False)
        rows = [f"{label} ({total})" for label, total in zip(labels, totals, strict=True)]
        axes.set_yticks(ticks, rows, parse_math=False)
    if len(labels) <= MOST_COUNTED_CLASSES:
        for row, column in np.argwhere(counts):
            color = "white" if shares[row, column] > 0.6 else "black"
            words = f"{counts[row, column]}\n{shares[row, column]:.0%}"
            axes.text(column, row, words, ha="center", va="center", color=color, fontsize=8)
    right = counts.trace() / max(counts.sum(), 1)
    axes.set_title(f"{counts.sum()} held-out examples, {right:.1%} right", loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel("prediction")
    axes.set_ylabel("label (examples)")
    figure.savefig(png_path, dpi=160, format="png", bbox_inches="tight")


def points(rows: list[dict], name: str) -> list[tuple[int, float]]:
    """Returns (step, value) of each row with a finite number `name`."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]


def smoothed(values: tuple[float, ...]) -> list[float]:
    """Returns the moving average around each value, over a tenth of all values; the window shrinks towards the ends.

    An average over past values only would lag behind a falling loss.
    """
    half, last = max(len(values) // 20, 1), len(values) - 1
    reaches = [min(half, i, last - i) for i in range(len(values))]
    return [statistics.fmean(values[i - reach : i + reach + 1]) for i, reach in enumerate(reaches)]
