"""Does faults to trainings on two hosts, which are network namespaces, and prints a table: `python -m tests.hosts`.

It needs root, openssh-server and iproute2. The exit code is 1 if something was not as it should be.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.crash_matrix.training import QUIET
from tests.hosts.faults import FAULTS, Row, play, undisturbed
from tests.hosts.network import unavailable_reason

HEAD = "| fault | ranks ended after (s) | launcher after (s) | codes of ranks 0 to 3 | launcher's | next start | line |"


def table(rows: dict[str, Row]) -> list[str]:
    """Returns the lines of the table; `rows` by the key of their fault."""
    lines = [HEAD, "| --- | ---: | ---: | --- | ---: | --- | --- |"]
    for key, row in rows.items():
        fault, outcome = FAULTS[key], row.outcome
        ended = f"{outcome.first:.0f} to {outcome.last:.0f}" if outcome.last else "none started"
        codes = ", ".join("lost" if code is None else str(code) for _, code in sorted(outcome.codes.items()))
        again = "as it should be" if not row.problems else "WRONG"
        if not fault.act:
            again = "" if not row.problems else "WRONG"
        line = row.line.replace("|", "\\|")
        lines.append(
            f"| {fault.name} | {ended} | {outcome.seconds:.0f} | {codes} | {outcome.code} | {again} | `{line}` |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__.split("\n\n")[0])
    parser.add_argument("--fault", choices=list(FAULTS), action="append", help="only this one")
    args = parser.parse_args()
    if reason := unavailable_reason():
        raise SystemExit(f"not here: {reason}")
    os.environ.update(QUIET)
    home, begin, expected, rows = Path(tempfile.mkdtemp(prefix="hosts.")), time.monotonic(), {}, {}
    for key in args.fault or FAULTS:
        fault = FAULTS[key]
        flags = tuple(flag for flag in fault.flags if "FOLDER" not in flag)
        if flags not in expected:
            expected[flags] = undisturbed(flags, home / f"undisturbed_{len(expected)}")
        (home / key).mkdir()
        rows[key] = play(fault, home / key, expected[flags])
        print(
            f"[{time.monotonic() - begin:5.0f} s] {fault.name}: {rows[key].problems or 'as it should be'}", flush=True
        )
    print(*table(rows), sep="\n")
    return int(any(row.problems for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
