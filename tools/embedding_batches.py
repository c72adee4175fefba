"""Does a large batch of pairs pay? Trains one encoder with batches of 64, 512 and 4,096, at equally many examples.

    python tools/embedding_batches.py     # after `make train`: prints the table of docs/embeddings.md and draws it

A pair is a docstring or a file of the built-in corpus: its first paragraph, and the others. Every third file is held
out. The initial weights are the small BERT of `make train`, which has read all texts, without pairs. Each batch is
trained with its learning rates in `RATES`. recall@10 is the share of held-out first paragraphs whose others are among
the ten nearest of all held-out documents. A run that is done is not repeated.
"""

import argparse
import ast
import hashlib
import inspect
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tftrain.prepare import builtin_corpus
from tftrain.prepare.prose import paragraphs

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/embedding_batches.png"
FOLDER = Path("build/embedding_batches")
HELD_OUT, HELD_OUT_SHARE = 5000, 3  # at most so many documents, of every third file
MICRO_BATCH = 512
RATES = {64: (1e-3,), 512: (2e-3,), 4096: (4e-3, 1e-2)}  # more for a larger batch
FLAGS = (
    "--task=embedding",
    "--text_column=title",
    "--text_pair_column=text",
    "--max_seq_length=32",
    "--optimizer=adamw",
    "--checkpoint_minutes=0",
    f"--train_file={FOLDER}/train.jsonl",
    f"--eval_file={FOLDER}/held_out.jsonl",
)
Pair = tuple[str, str]
Recalls = dict[tuple[int, float], dict[int, float]]  # by batch, learning rate and number of nearest texts


def main() -> None:
    """Makes the data, trains what is not done, prints the table and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", type=int, default=65_536, help="training examples of a run (default 65536)")
    parser.add_argument("--model", default="build/quickstart/run", help="the run with the initial weights")
    parser.add_argument("--output", default=PICTURE, help="the picture to write")
    args = parser.parse_args()
    write_pairs()
    held_out = [json.loads(line) for line in (FOLDER / "held_out.jsonl").read_text().splitlines()]
    found: Recalls = {}
    for size, rates in RATES.items():
        for rate in rates:
            folder = trained(size, rate, args.examples, args.model)
            found[size, rate] = recalls(vectors(folder, held_out))
    print("\n".join(table(found, args.examples)))
    draw(found, len(held_out), args.output)
    print(f"the same as a picture: {args.output}")


def write_pairs() -> None:
    """Writes train.jsonl and held_out.jsonl, in an order that depends on the texts alone."""
    splits: dict[bool, list[Pair]] = {False: [], True: []}
    seen: set[str] = set()
    paths = builtin_corpus.list_files()
    for path in paths:
        is_held_out = _digest(path.partition("site-packages")[2])[0] % HELD_OUT_SHARE == 0
        for title, text in pairs_of(Path(path)):
            if not seen & {title, text}:
                seen |= {title, text}
                splits[is_held_out].append((title, text))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", splits[False]), ("held_out", sorted(splits[True], key=_of_pair)[:HELD_OUT])):
        lines = (json.dumps({"title": title, "text": text}) + "\n" for title, text in sorted(pairs, key=_of_pair))
        (FOLDER / f"{name}.jsonl").write_text("".join(lines))
        print(f"{name}: {len(pairs):,} pairs")


def pairs_of(path: Path) -> Iterator[Pair]:
    """Yields the first paragraph and the others of each docstring of a file, or of a file without code."""
    try:
        content = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            texts = _docstrings(ast.parse(content)) if path.suffix == ".py" else [content.decode()]
    except (SyntaxError, ValueError, RecursionError):
        return
    for text in texts:
        title, *others = paragraphs(text) or [""]
        if others:
            yield title, " ".join(others)


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield inspect.cleandoc(ast.get_docstring(node, clean=False) or "")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _of_pair(pair: Pair) -> bytes:
    return _digest("\n".join(pair))


def trained(size: int, rate: float, examples: int, model: str) -> Path:
    """Returns the folder of a run with some global batch and learning rate, which is trained if it is not done."""
    folder, steps = FOLDER / f"{size}_{rate:g}_{examples}", examples // size
    if not (folder / f"checkpoints/step_{steps:08}").exists():
        sizes = (f"--global_batch_size={size}", f"--micro_batch_size={min(size, MICRO_BATCH)}", f"--max_steps={steps}")
        folders = (f"--init_checkpoint=tftrain:{model}", f"--output_dir={folder}")
        run("tftrain.run", *FLAGS, *sizes, f"--learning_rate={rate:g}", f"--eval_every={steps}", *folders)
    return folder


def run(module: str, *flags: str) -> str:
    """Returns what a program prints."""
    command = [sys.executable, "-m", module, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def vectors(folder: Path, held_out: Sequence[dict[str, str]]) -> np.ndarray:
    """Returns the vectors of the held-out titles and texts, of length 1, [2, n, H]."""
    path = folder / "vectors.npy"
    if not path.exists():
        texts = FOLDER / "texts.txt"
        texts.write_text("".join(f"{each[name]}\n" for name in ("title", "text") for each in held_out))
        flags = f"--output_dir={folder}", f"--input_file={texts}", "--batch_size=256", "--format=jsonl"
        lines = run("tftrain.predict", *flags).splitlines()
        found = np.array([json.loads(line)["embedding"] for line in lines], np.float32)
        np.save(path, found.reshape(2, len(held_out), -1))
    return np.load(path)


def recalls(vectors: np.ndarray) -> dict[int, float]:
    """Returns recall@1 and @10, given the vectors [2, n, H] of titles and texts; a text as near counts as nearer."""
    titles, texts = vectors
    cosines = titles @ texts.T
    ranks = (cosines >= np.diag(cosines)[:, None]).sum(1)
    return {most: float(np.mean(ranks <= most)) for most in (1, 10)}


def table(found: Recalls, examples: int) -> list[str]:
    """Returns the lines of a Markdown table: each batch with the learning rate of its best recall@10."""
    lines = ["| global batch | updates | recall@10 by learning rate | best recall@10 | recall@1 |"]
    lines.append("| ---: | ---: | --- | ---: | ---: |")
    for size, rates in RATES.items():
        best = max((found[size, rate] for rate in rates), key=lambda each: each[10])
        every = ", ".join(f"{rate:g}: {100 * found[size, rate][10]:.1f}%" for rate in rates)
        lines.append(f"| {size:,} | {examples // size:,} | {every} | {100 * best[10]:.1f}% | {100 * best[1]:.1f}% |")
    return lines


def draw(found: Recalls, held_out: int, path: str | Path) -> None:
    """Draws recall@10 over the global batch: a point for each learning rate, and a line through the best ones."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for (size, _), recall in found.items():
        axes.plot([size], [100 * recall[10]], color="#8a8a8a", marker="o")
    best = {size: max(100 * found[size, rate][10] for rate in rates) for size, rates in RATES.items()}
    axes.plot(list(best), list(best.values()), color="#c8553d", marker="o", linewidth=2)
    axes.set_title(f"recall@10 among {held_out:,} held-out documents, %", loc="left", fontweight="bold")
    axes.set_xlabel("global batch, in pairs")
    axes.set_xscale("log")
    axes.set_xticks(list(best), [f"{size:,}" for size in best])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, format="png")


if __name__ == "__main__":
    main()
