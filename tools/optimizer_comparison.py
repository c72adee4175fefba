"""Trains a small GPT with LAMB, AdamW and Muon, each at its best learning rate, and compares the tokens that they need.

    python tools/optimizer_comparison.py     # prints the tables of docs/recipes.md, and draws their picture

Every optimizer has equally many learning rates, a factor of 2 apart. While the best of one lies at an edge, each
optimizer gets one rate more, on its better side. The best then has further seeds. A run that is done is not repeated.
"""

import argparse
import itertools
import statistics
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from tftrain import notebook
from tftrain.report.metrics import read_rows
from tftrain.report.plot import points

FOLDER = Path("build/optimizers")
PICTURE = Path(__file__).resolve().parents[1] / "docs/results/optimizers.png"
COLORS = {"lamb": "#8a8a8a", "adamw": "#3b6ea8", "muon": "#c8553d"}
NAMES = {"lamb": "LAMB", "adamw": "AdamW", "muon": "Muon"}
CENTRES = {"lamb": 4e-2, "adamw": 4e-3, "muon": 4e-3}
FACTOR, MOST_RATES = 2.0, 9
LENGTH, BATCH, STEPS, EVAL_EVERY = 128, 16, 200, 20
TOKENS = STEPS * BATCH * LENGTH
DATA = {
    "builtin_corpus": True,
    "objective": "causal",
    "tokenizer_type": "bpe",
    "vocab_size": 2048,
    "max_seq_length": LENGTH,
}
MODEL = {
    "model_family": "gpt",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "initializer_range": 0.05,
}
MODEL |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "adam_beta2": 0.98}
RUN = {"global_batch_size": BATCH, "max_steps": STEPS, "eval_every": EVAL_EVERY, "eval_examples": 64, "log_every": 10}
Curve = list[tuple[int, float]]  # tokens and held-out loss
Curves = dict[str, list[Curve]]  # of the seeds of each optimizer


def main() -> None:
    """Runs everything that is not done, prints the tables and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs with the best learning rate (default 3)")
    parser.add_argument("--rates", type=int, default=5, help="learning rates of each optimizer at first (default 5)")
    parser.add_argument("--output", default=PICTURE, help="the picture to write")
    args = parser.parse_args()
    if not (FOLDER / "data/manifest.json").exists():
        notebook.prepare(**DATA, output_dir=FOLDER / "data")
    tuned = tune(args.rates)
    best = {name: min(losses, key=losses.get) for name, losses in tuned.items()}
    seeds = range(1, args.seeds + 1)
    folders = {name: [trained(name, best[name], seed) for seed in tqdm(seeds, name)] for name in COLORS}
    curves = {name: [curve(folder) for folder in each] for name, each in folders.items()}
    target = common_target(curves)
    print("\n".join(table_of_rates(tuned)), end="\n\n")
    print("\n".join(table(curves, folders, best, target)))
    draw(tuned, curves, target, args.output)
    print(f"\nthe same as a picture: {args.output}")


def tune(count: int) -> dict[str, dict[float, float]]:
    """Returns the final held-out loss of each learning rate of each optimizer, with one seed."""
    rates = {
        name: [centre * FACTOR**power for power in range(-(count // 2), count - count // 2)]
        for name, centre in CENTRES.items()
    }
    while True:
        losses = {
            name: {rate: curve(trained(name, rate, 1))[-1][1] for rate in tqdm(rates[name], name)} for name in COLORS
        }
        if len(rates["lamb"]) == MOST_RATES or not any(map(best_is_at_an_edge, losses.values())):
            return losses
        rates = {name: sorted([*rates[name], next_rate(losses[name])]) for name in COLORS}


def best_is_at_an_edge(losses: dict[float, float]) -> bool:
    """Returns whether the learning rate of the least loss is the smallest or the largest."""
    return min(losses, key=losses.get) in (min(losses), max(losses))


def next_rate(losses: dict[float, float]) -> float:
    """Returns the learning rate beyond the edge that has the smaller loss."""
    lowest, highest = min(losses), max(losses)
    return lowest / FACTOR if losses[lowest] < losses[highest] else highest * FACTOR


def trained(optimizer: str, rate: float, seed: int) -> Path:
    """Returns the folder of a run, which is trained if it is not done."""
    folder = FOLDER / "runs" / f"{optimizer}_{rate:g}_{seed}"
    if not (folder / "metrics.jsonl").exists() or [count for count, _ in curve(folder)[-1:]] != [TOKENS]:
        own = {"optimizer": optimizer, "learning_rate": f"{rate:g}", "seed": seed, "output_dir": folder}
        notebook.train(**MODEL, **RUN, **own, data_dir=FOLDER / "data", log_level="warning")
    return folder


def curve(folder: Path) -> Curve:
    """Returns tokens and held-out loss of each evaluation of a run."""
    return [(step * BATCH * LENGTH, loss) for step, loss in points(read_rows(folder / "metrics.jsonl"), "eval_lm_loss")]


def common_target(curves: Curves) -> float:
    """Returns the least loss that all runs reach, rounded up to hundredths."""
    return float(np.ceil(max(min(loss for _, loss in run) for runs in curves.values() for run in runs) * 100) / 100)


def tokens_to(run: Curve, target: float) -> float:
    """Returns the tokens after which a loss is first reached, between two evaluations by interpolation."""
    (before, above), (after, below) = next(pair for pair in itertools.pairwise(run) if pair[1][1] <= target)
    return before + (after - before) * (above - target) / (above - below)


def table_of_rates(tuned: dict[str, dict[float, float]]) -> list[str]:
    """Returns the lines of a Markdown table of the final losses of all learning rates."""
    lines = ["| optimizer | learning rate: held-out loss at the end |", "| --- | --- |"]
    for name, losses in tuned.items():
        best = min(losses, key=losses.get)
        cells = (
            f"**{rate:g}: {loss:.3f}**" if rate == best else f"{rate:g}: {loss:.3f}" for rate, loss in losses.items()
        )
        lines.append(f"| {NAMES[name]} | {', '.join(cells)} |")
    return lines


def table(curves: Curves, folders: dict[str, list[Path]], best: dict[str, float], target: float) -> list[str]:
    """Returns the lines of a Markdown table of what the optimizers need at their best learning rate."""
    lines = [
        f"| optimizer | learning rate | thousand tokens to a loss of {target:.2f} | loss at the end | seconds a step "
        "| state of the optimizer, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in curves.items():
        rows = [row for folder in folders[name] for row in read_rows(folder / "metrics.jsonl")]
        seconds = statistics.median(value for _, value in points(rows, "step_time_s"))
        state = next(row["memory_moments_bytes"] for row in rows if "memory_moments_bytes" in row) / 1e6
        tokens = mean_and_spread([tokens_to(run, target) / 1000 for run in runs], 0)
        end = mean_and_spread([run[-1][1] for run in runs], 3)
        lines.append(f"| {NAMES[name]} | {best[name]:g} | {tokens} | {end} | {seconds:.3f} | {state:.1f} |")
    return lines


def mean_and_spread(values: list[float], digits: int) -> str:
    """Returns mean and standard deviation as text."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"


def draw(tuned: dict[str, dict[float, float]], curves: Curves, target: float, path: str | Path) -> None:
    """Draws the loss over the tokens at the best learning rates, and the final loss over all learning rates."""
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    for name, color in COLORS.items():
        tokens = [count / 1000 for count, _ in curves[name][0]]
        losses = np.array([[loss for _, loss in run] for run in curves[name]])
        needed = statistics.mean(tokens_to(run, target) / 1000 for run in curves[name])
        left.plot(tokens, losses.mean(0), color=color, linewidth=2, label=f"{NAMES[name]}, {needed:.0f} thousand")
        left.fill_between(tokens, losses.min(0), losses.max(0), color=color, alpha=0.25, linewidth=0)
        left.plot([needed], [target], color=color, marker="o", markersize=6)
        right.plot(list(tuned[name]), list(tuned[name].values()), color=color, marker="o", label=NAMES[name])
    left.axhline(target, color="#555555", linestyle="--", linewidth=1)
    _title(left, f"Held-out loss, nats; tokens to {target:.2f}", "thousand tokens")
    left.set_xlim(left=0)
    _title(right, "Loss at the end of each learning rate", "learning rate")
    right.set_xscale("log")
    figure.savefig(path, dpi=110, format="png")


def _title(axes: Axes, title: str, across: str) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(across)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


if __name__ == "__main__":
    main()
