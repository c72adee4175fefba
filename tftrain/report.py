"""Makes the page of a run that is under way or was killed: OUTPUT_DIR/report.html.

Example, after the example of tftrain.run:
    python -m tftrain.report runs/try
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tftrain.cli.program import Program
from tftrain.config.fields import Problem
from tftrain.host.text import reason


@dataclass(frozen=True)
class ReportConfig:
    """The program has no flags."""


def main(argv: Sequence[str]) -> int:
    """Writes OUTPUT_DIR/report.html of each run; returns the exit code."""
    folders: list[str] = []
    missing = [Problem("", "OUTPUT_DIR", "expected the output folder of a run")]
    program = Program("report", ReportConfig, lambda _: "page", problems=lambda _: [] if folders else missing)
    return program.main(lambda _: max(map(report, folders)), argv, folders)


def report(folder: str) -> int:
    """Writes the page of a run and prints its path, or says why not; returns the exit code."""
    from tftrain.observe import run_page  # Loads TensorFlow, which takes seconds.

    try:
        print(run_page.write(folder))
        return 0
    except (OSError, ValueError, ArithmeticError) as error:
        words = f"{error.filename}: {reason(error)}" if isinstance(error, OSError) else error
        print(f"report: {words}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
