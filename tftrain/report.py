"""Makes the page of a run that is under way or was killed: `python -m tftrain.report OUTPUT_DIR...`."""

import argparse
import sys

from tftrain.host.text import reason


def main(argv: list[str]) -> int:
    """Writes OUTPUT_DIR/report.html of each run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tftrain.report", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("output_dir", nargs="+", help="folder of a run")
    from tftrain.observe import run_page  # Loads what draws, which is not needed for a wrong command.

    code = 0
    for folder in parser.parse_args(argv).output_dir:
        try:
            print(run_page.write(folder))
        except (OSError, ValueError, ArithmeticError) as error:
            words = f"{error.filename}: {reason(error)}" if isinstance(error, OSError) else error
            print(f"tftrain.report: {words}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
