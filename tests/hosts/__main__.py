"""Does faults to trainings on two hosts, which are network namespaces, and prints a table: `python -m tests.hosts`.

It needs root, openssh-server and iproute2. The exit code is 1 if something was not as it should be.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.crash_matrix.training import QUIET
from tests.hosts.faults import FAULTS, Fault, Row, play, undisturbed
from tests.hosts.network import unavailable_reason

HEAD = (
    "| fault | ranks ended after (s) | launcher after (s) | codes of ranks 0 to 3 | launcher's | final state | line |",
    "| --- | ---: | ---: | --- | ---: | --- | --- |",
)


def table_row(fault: Fault, row: Row) -> str:
    """Returns a line of the table."""
    outcome = row.outcome
    ended = f"{outcome.first:.0f} to {outcome.last:.0f}" if outcome.last else "none started"
    codes = ", ".join("lost" if code is None else str(code) for _, code in sorted(outcome.codes.items()))
    state = "equal" if fault.act or not fault.code else "no training"
    state = "; ".join(problem.splitlines()[0] for problem in row.problems) or state
    line = row.line.replace("|", "\\|")
    return f"| {fault.name} | {ended} | {outcome.seconds:.0f} | {codes} | {outcome.code} | {state} | `` {line} `` |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__.split("\n\n")[0])
    parser.add_argument("--fault", choices=list(FAULTS), action="append", help="only this one")
    args = parser.parse_args()
    if reason := unavailable_reason():
        raise SystemExit(f"not on this machine: {reason}")
    os.environ.update(QUIET)
    home, expected, problems = Path(tempfile.mkdtemp(prefix="hosts.")), {}, []
    print(*HEAD, sep="\n", flush=True)
    for key in args.fault or FAULTS:
        fault = FAULTS[key]
        flags = tuple(flag for flag in fault.flags if "FOLDER" not in flag)
        if flags not in expected:
            expected[flags] = undisturbed(flags, home / f"undisturbed_{len(expected)}")
        (home / key).mkdir()
        row = play(fault, home / key, expected[flags])
        print(table_row(fault, row), flush=True)
        problems += [f"PROBLEM: {fault.name}: {problem}" for problem in row.problems]
    print(*problems, sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
