"""Draws docs/equal_losses.png: one run in five layouts has one curve of losses.

python tools/equal_losses.py build/quickstart/data

Trains the small BERT of `make train`, with dropout and accumulation, on 1, 2 and 8 data parallel ranks, with tensor
parallelism and with pipeline stages, for 100 updates each, and prints the largest difference from one rank. It
takes six minutes on two cores.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure

from tftrain.observe.metrics import read_rows

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/equal_losses.png"
RUNS = ROOT / "build/equal_losses"
FLAGS = (
    "--flagfile=configs/quickstart.flags",
    "--hidden_dropout_prob=0.1",
    "--attention_probs_dropout_prob=0.1",
    "--micro_batch_size=4",
    "--warmup_steps=20",
    "--max_steps=100",
    "--log_every=1",
    "--eval_every=0",
    "--checkpoint_every=0",
    "--resume=none",
)
LAYOUTS = {
    "1 rank": (1, ()),
    "2 data parallel ranks": (2, ()),
    "8 data parallel ranks": (8, ()),
    "2 tensor parallel ranks": (2, ("--tensor_parallel_size=2",)),
    "2 pipeline stages": (2, ("--pipeline_parallel_size=2",)),
}
EPSILON = 2**-23
COLORS = ("#1b1b1b", "#3b6ea8", "#c8553d", "#5a8f4e", "#8a5aa8")


def main() -> None:
    """Trains in each layout, prints the differences, and draws them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="the prepared data of `make train`")
    args = parser.parse_args()
    losses = {name: train(name, args.data, *layout) for name, layout in LAYOUTS.items()}
    reference = losses["1 rank"]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, values), color, width in zip(losses.items(), COLORS, (9, 7, 5, 3, 1), strict=True):
        left.plot(range(1, len(values) + 1), values, color=color, linewidth=width, label=name)
        if values is not reference:
            differences = [abs(value - one) / one for value, one in zip(values, reference, strict=True)]
            print(f"{name}: largest relative difference from 1 rank in {len(values)} updates: {max(differences):.1e}")
            right.semilogy(range(1, len(values) + 1), differences, ".", color=color, label=name)
    left.set_title("Masked-LM loss of five layouts, nats", loc="left", fontweight="bold")
    right.set_title("Relative difference from 1 rank", loc="left", fontweight="bold")
    right.axhline(EPSILON, color="#777777", linestyle="--", linewidth=1.2, label="rounding of one fp32 number, 1.2e-07")
    right.set_ylim(1e-9, 1e-3)
    for panel in (left, right):
        panel.set_xlabel("update")
        panel.grid(color="#dddddd", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False)
    figure.savefig(PICTURE, dpi=110, format="png")


def train(name: str, data: str, ranks: int, flags: tuple[str, ...]) -> list[float]:
    """Returns the loss of each update of a run in a layout."""
    output = RUNS / name.replace(" ", "_")
    command = [sys.executable, "-m", "tftrain.launch", "-np", str(ranks), *FLAGS, *flags]
    subprocess.run([*command, f"--data_dir={data}", f"--output_dir={output}"], cwd=ROOT, check=True)
    return [row["mlm_loss"] for row in read_rows(output / "metrics.jsonl") if "mlm_loss" in row][-100:]


if __name__ == "__main__":
    main()
