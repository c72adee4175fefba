"""Draws docs/quickstart_run.png, what a run gives: loss, memory and speed, from the metrics of a finished `make train`.

python tools/quickstart_picture.py build/quickstart/run/metrics.jsonl
"""

import argparse
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tftrain.host.units import GB
from tftrain.observe.metrics import read_rows
from tftrain.observe.plot import ENTROPY, HELD_OUT, TRAIN, points, smoothed

PICTURE = Path(__file__).resolve().parents[1] / "docs/quickstart_run.png"
KINDS = ("baseline", "weights", "moments", "checkpoint_copy", "gradients", "communication", "activations")


def main() -> None:
    """Draws the picture of the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("metrics", help="metrics.jsonl of a finished run of configs/quickstart.flags")
    parser.add_argument("--output", default=PICTURE, help="the picture to write")
    args = parser.parse_args()
    rows = read_rows(args.metrics)
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1.4, 1.1, 1])
    loss(axes[0], rows)
    memory(axes[1], rows)
    speed(axes[2], rows)
    for panel in axes:
        panel.grid(color="#dddddd", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(args.output, dpi=110, format="png")


def loss(axes: Axes, rows: list[dict]) -> None:
    """Draws the loss of the masked words over the steps, of training and of the held-out text."""
    steps, losses = zip(*points(rows, "mlm_loss"), strict=True)
    axes.plot(steps, losses, color=TRAIN, linewidth=0.8, alpha=0.35)
    axes.plot(steps, smoothed(losses), color=TRAIN, linewidth=2, label="training")
    steps, losses = zip(*points(rows, "eval_mlm_loss"), strict=True)
    axes.plot(steps, losses, color=HELD_OUT, marker="o", markersize=5, label=f"held-out, {losses[-1]:.2f} at the end")
    entropy = points(rows, "eval_unigram_nats")[-1][1]
    axes.axhline(entropy, color=ENTROPY, linestyle="--", linewidth=1.2, label=f"unigram entropy, {entropy:.2f}")
    axes.set_title("Masked-LM loss, nats", loc="left", fontweight="bold")
    axes.set_xlabel("step")
    axes.legend(frameon=False)


def memory(axes: Axes, rows: list[dict]) -> None:
    """Draws the memory of the fullest rank by kind, measured and planned."""
    for shift, prefix, color, label in ((-0.2, "memory", TRAIN, "measured"), (0.2, "planned", "#9bb8d6", "planned")):
        row = next(row for row in rows if f"{prefix}_peak_bytes" in row)
        values = [row[f"{prefix}_{kind}_bytes"] / GB for kind in KINDS]
        places = [number + shift for number in range(len(KINDS))]
        axes.barh(places, values, 0.4, color=color, label=f"{label}, peak {row[f'{prefix}_peak_bytes'] / GB:.2f}")
    axes.set_yticks(range(len(KINDS)), [kind.replace("_", " ") for kind in KINDS])
    axes.invert_yaxis()
    axes.set_title("Memory of the fullest rank, GB", loc="left", fontweight="bold")
    axes.legend(frameon=False, loc="lower right")


def speed(axes: Axes, rows: list[dict]) -> None:
    """Draws tokens a second over all ranks, without padding."""
    steps, rates = zip(*points(rows, "real_tokens_per_sec"), strict=True)
    axes.plot(steps, [rate / 1000 for rate in rates], color=TRAIN, linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_title("Thousand tokens a second", loc="left", fontweight="bold")
    axes.set_xlabel("step")


if __name__ == "__main__":
    main()
