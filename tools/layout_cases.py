"""Compares the layout that `tftrain.launch --layout=auto` chooses with others, each as a run on this machine.

    .venv/bin/python tools/layout_cases.py --cases='bert/2,gpt/*'     # those whose names match; --list prints all
    .venv/bin/python tools/layout_cases.py --most=0                   # all layouts of each case: hours

A case is a family, a number of ranks and, if its name ends with `tight`, a memory in which few layouts fit. By default
the 8 layouts with the least planned time run, and those whose measured peak exceeds the memory don't count. The table
has the chosen time over the best one: a step's, the fastest of `--steps` in `--rounds` runs, which alternate. Use a
machine on which nothing else runs.
"""

import argparse
import dataclasses
import fnmatch
import os
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

from tftrain.bench.training import run
from tftrain.bench.worker import MeasureError
from tftrain.cli import flags
from tftrain.host import hardware
from tftrain.host.units import GB
from tftrain.plan import choice, machine, memory
from tftrain.plan.config import PlanConfig
from tftrain.plan.forecast import Forecast
from tftrain.plan.system import systems

FLAGS = (
    "--synthetic_data --num_hidden_layers=4 --hidden_size=512 --num_attention_heads=8 --vocab_size=8192 "
    "--max_seq_length=256 --global_batch_size=8 --output_dir=unused"
)
FAMILIES = ("bert", "gpt", "modernbert", "llama")
CASES = [f"{family}/{ranks}{tight}" for family in FAMILIES for ranks in (1, 2, 4) for tight in ("", "/tight")]
DEFAULT = "bert/2,gpt/2/tight"
TIGHT = 1.1  # a tight memory over what the smallest layout needs


def request_of(case: str) -> tuple[choice.Request, list[str]]:
    """Measures this machine; returns what is asked for in a case, and the flags of the model."""
    family, ranks, *tight = case.split("/")
    args = [f"--model_family={family}", *shlex.split(FLAGS)]
    config, _, named = flags.read(PlanConfig, ["launch", *args])
    with tempfile.TemporaryDirectory() as folder:
        machine.measure(Path(folder) / "machine.json")
        own = machine.read(Path(folder) / "machine.json")
    own = dataclasses.replace(own, memory_gb=min(own.memory_gb, hardware.host_memory_gb()))
    request = choice.Request(config, named, machine.shared(own, int(ranks)), systems()["tftrain_cpu"])
    if tight:
        least = min(memory.estimate(plan.work, request.constants).minimum for plan in plans(request))
        limit = TIGHT * least / GB / (1 - config.plan.memory_margin)
        request = request._replace(cluster=dataclasses.replace(request.cluster, memory_gb=limit))
    return request, args


def plans(request: choice.Request, most: int = 1 << 30) -> list[Forecast]:
    """Returns the layouts that the trainer takes and that fit, those with the least planned time first."""
    return choice.choose(request, most).fastest


def compare(case: str, most: int, steps: int, rounds: int) -> tuple[str, float]:
    """Returns a line of the table, and the chosen time over the best; layouts alternate, the fastest round counts."""
    request, args = request_of(case)
    limit, figures = request.cluster.memory_gb, {}
    layouts = plans(request, most or 1 << 30)
    for plan in layouts * rounds:
        name = choice.describe(plan.work)
        try:
            found = run.measure([*args, *choice.arguments(plan.work, request)], plan.work.ranks, steps)
        except MeasureError as error:
            print(f"{case}: {name}: {error}", file=sys.stderr)
            continue
        seconds, gb = min(found.step_seconds), found.peak_gb
        told = f"{seconds:.3f} s (planned {plan.seconds:.3f}), {gb:.2f} GB (planned {plan.gb:.2f})"
        print(f"{case}: {name}: {told}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        before = figures.get(name, (seconds, gb))
        figures[name] = min(before[0], seconds), max(before[1], gb)
    first = choice.describe(layouts[0].work)
    if first not in figures:
        sys.exit(f"{case}: the chosen layout did not run")
    measured = [(*found, name) for name, found in figures.items() if name == first or found[1] <= limit]
    chosen, best = measured[0], min(measured)
    fits = "yes" if chosen[1] <= limit else f"no, {chosen[1]:.2f} GB"
    cells = case, f"{limit:.2f}", len(measured), chosen[2], f"{chosen[0]:.3f}", fits, best[2], f"{best[0]:.3f}"
    ratio = chosen[0] / best[0]
    return f"| {' | '.join(map(str, cells))} | {ratio:.2f} |", ratio


def main() -> None:
    """Prints the table of the cases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=DEFAULT)
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    chosen = [case for case in CASES if any(fnmatch.fnmatch(case, glob) for glob in args.cases.split(","))]
    if args.list or not chosen:
        print("\n".join(CASES))
        sys.exit(0 if args.list else f"--cases={args.cases}: expected names or globs of the cases above")
    print("| case | GB a rank | runs | chosen | s | fits | best | s | chosen / best |\n|" + " --- |" * 9, flush=True)
    ratios = []
    for case in chosen:
        line, ratio = compare(case, args.most, args.steps, args.rounds)
        print(line, flush=True)
        ratios.append(ratio)
    print(f"\nchosen / best: median {statistics.median(ratios):.2f}, at most {max(ratios):.2f}")


if __name__ == "__main__":
    main()
