"""Kills trainings in every phase and at random instants, and injects other faults: `python -m tests.crash_matrix`.

Prints a line for every start and a table at the end. The exit code is 1 if a run lost more steps than it may, did not
end in time, or has another result than an undisturbed run.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash_matrix import matrix, scenarios, training


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash_matrix", description=__doc__.split("\n\n")[1])
    parser.add_argument("--kills", type=int, default=120, help="in all, shared by the layouts")
    parser.add_argument("--layout", choices=list(matrix.LAYOUTS), action="append", help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ.update(training.QUIET)
    names = args.layout or list(matrix.LAYOUTS)
    home = Path(tempfile.mkdtemp(prefix="crash_matrix."))
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - begin:5.0f} s] {line}", flush=True)

    say(f"seed {args.seed}, in {home}")
    found: dict[str, dict[str, matrix.Tally]] = {}
    scenes: list[tuple[str, str, str]] = []
    # Ctrl-C ends it early, with the table of what was done.
    with contextlib.suppress(KeyboardInterrupt):
        for number, name in enumerate(names):
            folder, found[name] = home / name.replace(" ", "_"), {}
            folder.mkdir()
            # A layout's kills do not depend on which others are run.
            rng = random.Random(f"{args.seed} {name}")
            share = args.kills * (number + 1) // len(names) - args.kills * number // len(names)
            matrix.run(name, share, rng, folder, say, found[name])
        if args.layout is None:
            scenes += scenarios.play(home, say)
    print(*matrix.table(found), sep="\n")
    if scenes:
        print(*scenarios.table(scenes), sep="\n")
    faults = [f"{name}: {words}" for name, came, words in scenes if came == "FAULT"]
    faults += [fault for tallies in found.values() for tally in tallies.values() for fault in tally.faults]
    for fault in faults:
        print(f"\nFAULT: {fault}")
    total = sum(tally.kills for tallies in found.values() for tally in tallies.values())
    resumed = sum(tally.resumed for tallies in found.values() for tally in tallies.values())
    say(
        f"{total} kills, {resumed} seen to go on, {len(faults)} faults; python -m tests.crash_matrix --seed={args.seed}"
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
