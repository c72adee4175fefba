"""Fine-tunes a small pre-trained BERT and one of random weights, and compares them: `make finetune`.

The task needs no download: from which of 20 packages is a paragraph of the built-in corpus? Its files are divided into
training and held-out ones. Pre-training has read both, without labels. For each number of training examples a class,
each kind of initial weights is trained with several seeds. The accuracies are printed as a table, and drawn.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from tqdm import tqdm

from tftrain.prepare import builtin_corpus

FOLDER = Path("build/finetune")
DATA = Path("build/quickstart/data")
PRETRAINED = FOLDER / "pretrained"  # the model of `make train`, trained ten times as long
CLASSES = 20
EXAMPLES = (10, 50, 200)  # numbers for each class
HELD_OUT_EXAMPLES = 50  # for each class
HELD_OUT_SHARE = 4  # every fourth file is held out
LEAST_WORDS = 12
KINDS = {"pre-trained": "#c8553d", "random": "#3b6ea8"}
# The flags of the pre-trained model, for the one of random weights.
MODEL = ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "norm_position")


def main() -> None:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="runs for each line of the table (default 5)")
    parser.add_argument("--steps", type=int, default=300, help="updates of a run (default 300)")
    parser.add_argument("--examples", type=int, nargs="+", default=EXAMPLES, help="training examples a class")
    args = parser.parse_args()
    write_examples(args.examples)
    results = {}
    runs = [(kind, count) for count in args.examples for kind in KINDS]
    for kind, count in tqdm(runs, unit="line", disable=None):
        results[kind, count] = accuracies(kind, count, args.seeds, args.steps)
    print(table(results, args.examples))
    draw(results, args.examples, FOLDER / "accuracy.png")
    print(f"the same as a picture: {FOLDER / 'accuracy.png'}")


def write_examples(counts: Sequence[int]) -> None:
    """Writes build/finetune/train_N.jsonl for each number of examples a class, and held_out.jsonl."""
    pools: dict[str, dict[str, list[str]]] = {}
    seen: set[str] = set()
    paths = builtin_corpus.list_files()
    for path, paragraphs in zip(paths, builtin_corpus.extract_all(paths), strict=True):
        package = package_of(path)
        is_held_out = hashlib.sha256(path.partition("site-packages")[2].encode()).digest()[0] % HELD_OUT_SHARE == 0
        pool = pools.setdefault(package, {"train": [], "held_out": []})
        for text in paragraphs:
            if len(text.split()) >= LEAST_WORDS and text not in seen:
                seen.add(text)
                pool["held_out" if is_held_out else "train"].append(text)
    # The packages with most paragraphs in the smaller of their two pools, in proportion to what is needed.
    most = max(counts)
    by_size = sorted(pools, key=lambda name: -min(len(pools[name]["train"]) / most, len(pools[name]["held_out"]) / 50))
    chosen = sorted(by_size[:CLASSES])
    FOLDER.mkdir(parents=True, exist_ok=True)
    held_out = [(name, text) for name in chosen for text in sample(pools[name]["held_out"], HELD_OUT_EXAMPLES)]
    write(FOLDER / "held_out.jsonl", held_out)
    for count in counts:
        examples = [(name, text) for name in chosen for text in sample(pools[name]["train"], count)]
        write(FOLDER / f"train_{count}.jsonl", examples)
        print(f"{len(examples)} training examples of {len(chosen)} packages, {len(held_out)} held-out ones")


def package_of(path: str) -> str:
    """Returns the folder or module below site-packages that a file belongs to."""
    return path.partition("site-packages/")[2].partition("/")[0].removesuffix(".py")


def sample(texts: Sequence[str], count: int) -> list[str]:
    """Returns some of the texts, the same ones for the same text."""
    return sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())[:count]


def write(path: Path, examples: Sequence[tuple[str, str]]) -> None:
    """Writes examples as JSONL."""
    path.write_text("".join(json.dumps({"text": text, "label": name}) + "\n" for name, text in examples))


def accuracies(kind: str, count: int, seeds: int, steps: int) -> list[float]:
    """Trains with each seed, and returns the best held-out accuracies; runs that are done are not repeated."""
    output_dir = FOLDER / f"{kind}_{count}"
    flags = [
        "--flagfile=configs/finetune.flags",
        f"--train_file={FOLDER / f'train_{count}.jsonl'}",
        f"--eval_file={FOLDER / 'held_out.jsonl'}",
        f"--seeds={seeds}",
        f"--max_steps={steps}",
        f"--output_dir={output_dir}",
    ]
    if kind == "random":
        model = json.loads((PRETRAINED / "config.json").read_text())["config"]["model"]
        flags += [f"--{name}={model[name]}" for name in (*MODEL, "initializer_range")]
        flags.append(f"--tokenizer_dir={DATA}")
    else:
        flags.append(f"--init_checkpoint=tftrain:{PRETRAINED}")
    with (FOLDER / f"{kind}_{count}.log").open("w") as log:
        command = [sys.executable, "-m", "tftrain.run", *flags]
        if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
            sys.exit(f"{' '.join(command)}\nfailed; {log.name} says why")
    path = output_dir / "seeds.json" if seeds > 1 else output_dir / "best.json"
    content = json.loads(path.read_text())
    return list(content["scores"].values()) if seeds > 1 else [max(each["value"] for each in content["evaluations"])]


def table(accuracies: dict[tuple[str, int], list[float]], counts: Sequence[int]) -> str:
    """Returns the accuracies as a Markdown table, in percent."""
    lines = ["| examples a class | initial weights | accuracy, mean | standard deviation | seeds |"]
    lines.append("| ---: | --- | ---: | ---: | ---: |")
    for count in counts:
        for kind in KINDS:
            mean, spread = mean_and_spread(accuracies[kind, count])
            lines.append(f"| {count} | {kind} | {mean:.1f} | {spread:.1f} | {len(accuracies[kind, count])} |")
    return "\n".join(lines)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Returns mean and standard deviation, in percent."""
    return 100 * statistics.mean(values), 100 * statistics.stdev(values) if len(values) > 1 else 0.0


def draw(accuracies: dict[tuple[str, int], list[float]], counts: Sequence[int], path: Path) -> None:
    """Draws accuracy over the number of examples, with the spread over the seeds."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for kind, color in KINDS.items():
        means, spreads = zip(*(mean_and_spread(accuracies[kind, count]) for count in counts), strict=True)
        axes.errorbar(counts, means, spreads, color=color, marker="o", capsize=4, label=f"{kind} weights")
    axes.set_title(f"Which of {CLASSES} packages is a paragraph from?", loc="left", fontweight="bold")
    axes.set_xlabel("training examples a class")
    axes.set_ylabel("held-out accuracy (%)")
    axes.set_xscale("log")
    axes.set_xticks(counts, map(str, counts))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
