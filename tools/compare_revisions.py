"""Compares this checkout with an earlier revision: the same flags must give the same losses and weights, bit for bit.

    .venv/bin/python tools/compare_revisions.py --base=HEAD~1
    .venv/bin/python tools/compare_revisions.py --base=HEAD~1 --cases=quickstart,zero1_even

Each case trains 20 steps of a small model with dropout, in a git worktree of the base revision and in this checkout,
through the command line alone: the comparison does not depend on how either is built inside. It compares every logged
step, every evaluation, and every tensor of the last checkpoint. For the column "restores", this checkout resumes the
base's checkpoint of step 10 and goes on to step 20. Both train on the records that the base has prepared; the rows
prepare_... compare those with the records that this checkout prepares. One thread on each rank keeps sums repeatable.

Results of the base are kept in the work folder, by revision, flags, ops library, packages and machine. A row ends with

    identical   all numbers are the same
    rounding    losses, gradient norms and tensors differ by rounding: in fp32, or where the case expects it
    DIFFERENT   anything else; the exit code is then 1. Lines below the row name the first difference
"""

import argparse
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from revision_cases import CASES, DATA, MIDDLE, STEPS, Case
from revision_results import VERDICTS, Comparison, compare, read_rows, read_tensors
from revision_runs import RunError, Tree, write_corpus

ROOT = Path(__file__).resolve().parents[1]
OPS = Path("build/custom_ops/libtftrain_ops.so")
HEADER = ("case", "steps", "loss, relative", "tensors that differ", "restores", "seconds", "verdict")
ROW = "{:21} | {:>5} | {:>14} | {:>19} | {:9} | {:>13} | {}"


def git(*args: str) -> str:
    """Returns what a git command prints; SystemExit with its message if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout.strip()


def base_tree(path: Path, revision: str, ops: str | None) -> Tree:
    """Returns a git worktree of a revision with a library of fused ops: the given one, its own, or this checkout's."""
    if not path.exists():
        git("worktree", "add", "--force", "--detach", str(path), revision)
    head = subprocess.run(["git", "-C", str(path), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    if head != revision:
        raise SystemExit(f"{path} is at {head or 'no revision'}, expected {revision}; remove it")
    source = Path(ops) if ops else ROOT / OPS
    if ops or not (path / OPS).exists():
        if not source.exists():
            raise SystemExit(f"{source}: no library of fused ops; build it with `make setup`, or name one: --base_ops")
        (path / OPS).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path / OPS)
    return Tree(path)


def machine() -> str:
    """Describes the machine that results depend on: processor, Python, packages."""
    processor = Path("/proc/cpuinfo")
    lines = processor.read_text().splitlines() if processor.exists() else [platform.processor()]
    parts = sorted({line for line in lines if line.startswith(("model name", "flags"))})
    packages = ("tensorflow", "tf-keras", "tensorflow-text", "numpy", "horovod")
    return json.dumps([parts, platform.python_version(), [importlib.metadata.version(name) for name in packages]])


def kept(folder: Path, make: Callable[[Path], None], *depends: Any) -> tuple[Path, float]:
    """Returns the folder of a cached result, made once for each set of inputs, and the seconds that it took to make."""
    digest = hashlib.sha256(json.dumps([machine(), *depends], sort_keys=True).encode()).hexdigest()[:12]
    path, start = folder.with_name(f"{folder.name}-{digest}"), time.monotonic()
    if path.exists():
        return path, 0.0
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    make(partial)
    try:
        partial.rename(path)
    except OSError:
        # Another comparison has made the same meanwhile.
        shutil.rmtree(partial)
    return path, time.monotonic() - start


def prepare(tree: Tree, corpus: Path, data: str, folder: Path) -> None:
    """Prepares the records of a key of DATA in `folder`/records."""
    tree.run("tftrain.prepare", DATA[data] | {"input_files": corpus, "output_dir": "records"}, folder)


def train(tree: Tree, case: Case, records: Path, folder: Path, resume: Path | None = None) -> None:
    """Trains a case, from a checkpoint if one is given; the run is in `folder`/run."""
    flags = {
        name: str(value).format(data=records) if "{data}" in str(value) else value
        for name, value in case.all_flags().items()
    }
    flags |= {"output_dir": "run"} | ({"resume": resume} if resume else {})
    tree.run("tftrain.run", flags, folder, case.ranks)


def result(folder: Path) -> tuple[Mapping, Mapping]:
    """Returns rows and tensors of a finished run."""
    return read_rows(folder / "run"), read_tensors(checkpoint(folder, STEPS))


def checkpoint(folder: Path, step: int) -> Path:
    """Returns where a run has left its checkpoint of a step."""
    return folder / "run" / "checkpoints" / f"step_{step:08d}"


class Comparer:
    """Runs cases in both trees and prints a row for each."""

    def __init__(self, base: Tree, home: Path, here: Path):
        """Writes the corpus.

        Args:
            base: the base's tree.
            home: the folder where its results are kept.
            here: the folder for those of this checkout, which are made anew.
        """
        self.base, self.home, self.here, self.tree = base, home, here, Tree(ROOT)
        self.ops = hashlib.sha256((base.path / OPS).read_bytes()).hexdigest()
        self.corpus, self.failed = home / "corpus.txt", 0
        home.mkdir(parents=True, exist_ok=True)
        write_corpus(self.corpus)

    def records(self, data: str) -> tuple[Path, float]:
        """Returns the base's records for a key of DATA and the seconds it took to prepare them."""
        depends = (DATA[data], hashlib.sha256(self.corpus.read_bytes()).hexdigest())
        path, seconds = kept(
            self.home / f"prepare_{data}", lambda to: prepare(self.base, self.corpus, data, to), *depends
        )
        return path / "records", seconds

    def compare_records(self, data: str) -> None:
        """Prints the row of a key of DATA."""
        theirs, seconds = self.records(data)
        start, mine = time.monotonic(), self.empty(f"prepare_{data}")
        prepare(self.tree, self.corpus, data, mine)
        names = {path.name for folder in (theirs, mine / "records") for path in folder.iterdir()}
        other = [name for name in sorted(names) if contents(theirs / name) != contents(mine / "records" / name)]
        notes = [f"file {other[0]} is not the same"] if other else []
        share = f"{len(other)} of {len(names)} files"
        verdict = "DIFFERENT" if other else "identical"
        self.print_row((f"prepare_{data}", "-", "-", share, "-"), seconds, start, verdict, notes)

    def compare_case(self, name: str) -> None:
        """Prints the row of a case."""
        case, (records, _) = CASES[name], self.records(CASES[name].data)
        depends = (case.all_flags(), case.ranks, records.parent.name, self.ops)
        theirs, seconds = kept(self.home / name, lambda to: train(self.base, case, records, to), *depends)
        start, mine, again = time.monotonic(), self.empty(name), self.empty(f"{name}-resumed")
        train(self.tree, case, records, mine)
        train(self.tree, case, records, again, checkpoint(theirs, MIDDLE))
        expected = result(theirs)
        first, resumed = compare(expected, result(mine)), compare(expected, result(again), after=MIDDLE)
        verdicts = [each.verdict(case.limit()) for each in (first, resumed)]
        notes = [f"resumed: {note}" for note in lines_of(resumed)] if verdicts[1] != "identical" else []
        notes = lines_of(first) + notes
        if case.rounding and set(verdicts) != {"identical"}:
            notes.append(f"rounding is expected, {case.limit():.0e} of a loss: {case.rounding}")
        steps = sum(kind == "train" for kind, _ in expected[0])
        share = f"{first.differing} of {first.tensors}" + (f", {first.tensor:.1e}" if first.differing else "")
        verdict = max(verdicts, key=VERDICTS.index)
        self.print_row((name, steps, f"{first.loss:.1e}", share, verdicts[1]), seconds, start, verdict, notes)

    def empty(self, name: str) -> Path:
        """Returns a new folder for a result of this checkout."""
        shutil.rmtree(self.here / name, ignore_errors=True)
        (self.here / name).mkdir(parents=True)
        return self.here / name

    def print_row(self, cells: tuple, base_seconds: float, start: float, verdict: str, notes: list[str]) -> None:
        """Prints a row, and what explains it below; counts what is different."""
        base = f"{base_seconds:.0f}" if base_seconds else "kept"
        print(ROW.format(*cells, f"{base} + {time.monotonic() - start:.0f}", verdict), flush=True)
        for note in notes:
            print(f"    {note}", flush=True)
        self.failed += verdict == "DIFFERENT"

    def row(self, name: str, work: Callable[[], None]) -> None:
        """Does the work of a row; a program that fails is a difference."""
        start = time.monotonic()
        try:
            work()
        except (RunError, OSError, ValueError, KeyError) as error:
            self.print_row((name, "-", "-", "-", "-"), 0.0, start, "DIFFERENT", [f"{type(error).__name__}: {error}"])


def contents(path: Path) -> bytes | None:
    """Returns the bytes of a file, or None if it is not there."""
    return path.read_bytes() if path.exists() else None


def lines_of(comparison: Comparison) -> list[str]:
    """Returns the first lines that explain a comparison."""
    return [*comparison.unequal[:3], *comparison.notes]


def main() -> int:
    """Runs the program and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="revision to compare with, as git names it")
    parser.add_argument("--cases", default=",".join(CASES), help="names with commas between; default: %(default)s")
    parser.add_argument("--workdir", type=Path, default=ROOT / "build" / "compare", help="default: build/compare")
    parser.add_argument("--base_ops", help="library of the base's fused ops; default: a copy of this checkout's")
    args = parser.parse_args()
    # Ranks have sessions of their own: only an exception here ends them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    names = args.cases.split(",")
    if unknown := set(names) - set(CASES):
        parser.error(f"--cases: no such case: {', '.join(sorted(unknown))}; expected some of {', '.join(CASES)}")
    revision = git("rev-parse", f"{args.base}^{{commit}}")
    home = args.workdir.resolve() / revision[:12]
    base = base_tree(home / "tree", revision, args.base_ops)
    here = home.parent / f"checkout-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    print(f"base {revision[:12]}, this checkout {git('rev-parse', 'HEAD')[:12]}{changed}\n\n{ROW.format(*HEADER)}")
    comparer = Comparer(base, home, here)
    for data in dict.fromkeys(CASES[name].data for name in names):
        comparer.row(f"prepare_{data}", functools.partial(comparer.compare_records, data))
    for name in names:
        comparer.row(name, functools.partial(comparer.compare_case, name))
    print(f"\n{comparer.failed} rows are DIFFERENT" if comparer.failed else "\nno row is DIFFERENT")
    return int(comparer.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
