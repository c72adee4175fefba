"""Feeds damaged files to everything that reads files from elsewhere: `python -m tests.fuzz [--cases=10000]`.

No damage may crash, hang or fill the memory; what is refused is refused by an error that names the file, in one line,
and what is accepted is right. A failure prints the command that repeats it. Exit code: 1 if there was any.
"""

import argparse
import importlib
import os
import sys
import time
from collections import Counter

from tests.fuzz import harness
from tests.fuzz.targets import TARGETS

ROUND = 250
# Each child begins with these. Importing them starts no threads of TensorFlow's, so a fork is sound.
IMPORTED = (
    *("tensorflow", "tftrain.data.source", "tftrain.tokenizer.tensorflow_text", "tftrain.tokenizer.vocabulary_learner"),
    "tests.checkpoint.states",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n\n")[1])
    parser.add_argument("--cases", type=int, default=10_000, help="cases in all, shared by the targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=list(TARGETS), action="append", help="only this one")
    parser.add_argument("--case", type=int, help="only this case of the target")
    args = parser.parse_args()
    os.environ.update(TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
    for module in IMPORTED:
        importlib.import_module(module)
    names = args.target or list(TARGETS)
    print(f"seed {args.seed}, targets {', '.join(names)}", flush=True)
    counts = {name: Counter() for name in names}
    begin, failures = time.monotonic(), 0
    for name, cases in _rounds(names, args):
        started = time.monotonic()
        for result in harness.run(TARGETS[name](), args.seed, cases):
            counts[name]["failed" if result.failed else result.outcome] += 1
            if result.failed:
                failures += 1
                print(f"\nFAILED: python -m tests.fuzz --seed={args.seed} --target={name} --case={result.case}")
                print(result.outcome, flush=True)
        seen = ", ".join(f"{counts[name][kind]} {kind}" for kind in ("refused", "accepted", "failed"))
        print(f"{name:<16} {seen}; the last {len(cases)} in {time.monotonic() - started:.1f} s", flush=True)
    total = sum(count.total() for count in counts.values())
    print(f"{total} cases in {time.monotonic() - begin:.0f} s, {failures} failed")
    return int(failures > 0)


def _rounds(names, args):
    """Yields a target and its next cases, until all are done."""
    if args.case is not None:
        yield names[0], [args.case]
        return
    share = -(-args.cases // len(names))
    for first in range(0, share, ROUND):
        yield from ((name, range(first, min(first + ROUND, share))) for name in names)


if __name__ == "__main__":
    sys.exit(main())
