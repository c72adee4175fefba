"""Trains a small GPT with LAMB, AdamW and Muon, each at its best learning rate, and compares the tokens that they need.

    python tools/optimizer_comparison.py     # prints the tables of docs/results/optimizers.md, and draws their picture

Every optimizer is tuned in the same way: its learning rate, and then, with one seed, a multiplier of the embeddings'
rate beside the best. Each time all have equally many values. While the best of one lies at an edge, each optimizer gets
one value more, on its better side. The best learning rate has further seeds. A run that is done is not repeated.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from tftrain import notebook
from tftrain.observe.metrics import read_rows
from tftrain.observe.plot import points

FOLDER = Path("build/optimizers")
PICTURE = Path(__file__).resolve().parents[1] / "docs/results/optimizers.png"
COLORS = {"lamb": "#8a8a8a", "adamw": "#3b6ea8", "muon": "#c8553d"}
NAMES = {"lamb": "LAMB", "adamw": "AdamW", "muon": "Muon"}
CENTRES = {"lamb": 4e-2, "adamw": 4e-3, "muon": 4e-3}
# Between learning rates, and between the multipliers of the embeddings' rate.
RATE_FACTOR, EMBEDDING_FACTOR, MOST_VALUES = 2.0, 4.0, 9
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
Curves = dict[str, list[Curve]]  # by optimizer, one for each seed
Losses = dict[str, dict[float, float]]  # by optimizer and value that was tried, the final held-out loss


def main() -> None:
    """Runs everything that is not done, prints the tables and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs with the best setting (default 3)")
    parser.add_argument("--output", default=PICTURE, help="the picture to write")
    args = parser.parse_args()
    if not (FOLDER / "data/manifest.json").exists():
        notebook.prepare(**DATA, output_dir=FOLDER / "data")
    tuned = tune(CENTRES, 5, RATE_FACTOR, lambda name, rate: end_of(trained(name, rate, 1.0, 1)))
    best = best_of(tuned)
    of_embeddings = tune(
        dict.fromkeys(COLORS, 1.0),
        3,
        EMBEDDING_FACTOR,
        lambda name, multiplier: end_of(trained(name, best[name], multiplier, 1)),
    )
    seeds = range(1, args.seeds + 1)
    runs = {name: [trained(name, best[name], 1.0, seed) for seed in tqdm(seeds, name, disable=None)] for name in COLORS}
    curves = {name: [curve(folder) for folder in folders] for name, folders in runs.items()}
    target = common_target(curves)
    print("\n".join(table_of_values("learning rate", tuned)), end="\n\n")
    print("\n".join(table(curves, runs, best, target)), end="\n\n")
    print("\n".join(table_of_values("multiplier of the embeddings' rate", of_embeddings)))
    with_two = {name: curve(trained(name, best[name], value, 1)) for name, value in best_of(of_embeddings).items()}
    needed = (f"{NAMES[name]} {tokens_to(run, target) / 1000:.0f}" for name, run in with_two.items())
    print(f"\nthousand tokens to {target:.2f} with the best multiplier: {', '.join(needed)}")
    draw(tuned, curves, target, args.output)
    print(f"the curves as a picture: {args.output}")


def tune(centres: dict[str, float], count: int, factor: float, loss_of: Callable[[str, float], float]) -> Losses:
    """Returns the loss of each value of each optimizer, at first `count` values around its centre."""
    values = {
        name: [centre * factor**power for power in range(-(count // 2), count - count // 2)]
        for name, centre in centres.items()
    }
    while True:
        losses = {
            name: {value: loss_of(name, value) for value in tqdm(values[name], name, disable=None)} for name in COLORS
        }
        if len(losses["lamb"]) == MOST_VALUES or not any(map(best_is_at_an_edge, losses.values())):
            return losses
        values = {name: sorted([*values[name], next_value(losses[name], factor)]) for name in COLORS}


def best_of(losses: Losses) -> dict[str, float]:
    """Returns the value of the least loss of each optimizer."""
    return {name: min(each, key=each.get) for name, each in losses.items()}


def end_of(folder: Path) -> float:
    """Returns the final held-out loss of a run."""
    return curve(folder)[-1][1]


def best_is_at_an_edge(losses: dict[float, float]) -> bool:
    """Returns whether the learning rate of the least loss is the smallest or the largest."""
    return min(losses, key=losses.get) in (min(losses), max(losses))


def next_value(losses: dict[float, float], factor: float) -> float:
    """Returns the value beyond the edge that has the smaller loss."""
    lowest, highest = min(losses), max(losses)
    return lowest / factor if losses[lowest] < losses[highest] else highest * factor


def trained(optimizer: str, rate: float, embeddings: float, seed: int) -> Path:
    """Returns the folder of a run, which is trained if it is not done."""
    folder = FOLDER / "runs" / f"{optimizer}_{rate:g}_{seed}{'' if embeddings == 1 else f'_embeddings_{embeddings:g}'}"
    if not (folder / "metrics.jsonl").exists() or [count for count, _ in curve(folder)[-1:]] != [TOKENS]:
        own = {"optimizer": optimizer, "learning_rate": f"{rate:g}", "seed": seed, "output_dir": folder}
        if embeddings != 1:
            own["param_groups"] = f"embeddings/* rate={embeddings:g}"
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


def table_of_values(title: str, tuned: Losses) -> list[str]:
    """Returns the lines of a Markdown table of the final losses of all values."""
    lines = [f"| optimizer | {title}: held-out loss at the end |", "| --- | --- |"]
    for name, losses in tuned.items():
        best = min(losses, key=losses.get)
        cells = [f"{value:g}: {loss:.3f}" for value, loss in losses.items()]
        cells[list(losses).index(best)] = f"**{best:g}: {losses[best]:.3f}**"
        lines.append(f"| {NAMES[name]} | {', '.join(cells)} |")
    return lines


def table(curves: Curves, folders: dict[str, list[Path]], best: dict[str, float], target: float) -> list[str]:
    """Returns the lines of a Markdown table of what the optimizers need at their best learning rate."""
    lines = [
        f"| optimizer | learning rate | thousand tokens to a loss of {target:.2f} | loss at the end "
        "| seconds a step, at least | state of the optimizer, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in curves.items():
        rows = [row for folder in folders[name] for row in read_rows(folder / "metrics.jsonl")]
        seconds = min(value for _, value in points(rows, "step_time_s"))
        state = next(row["memory_moments_bytes"] for row in rows if "memory_moments_bytes" in row) / 1e6
        tokens = mean_and_spread([tokens_to(run, target) / 1000 for run in runs], 0)
        end = mean_and_spread([run[-1][1] for run in runs], 3)
        lines.append(f"| {NAMES[name]} | {best[name]:g} | {tokens} | {end} | {seconds:.3f} | {state:.1f} |")
    return lines


def mean_and_spread(values: list[float], digits: int) -> str:
    """Returns mean and standard deviation as text."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"


def draw(tuned: Losses, curves: Curves, target: float, path: str | Path) -> None:
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
