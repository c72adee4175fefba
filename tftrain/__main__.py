"""Starts a program, shows a guide, or lists them: `python -m tftrain NAME ...`, if installed `tftrain NAME ...`."""

import os
import sys

import tftrain
from tftrain.cli import guides, help


def main() -> None:
    """Does what the command line says, and ends the process."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in help.PROGRAMS:  # It takes the place of this process, so both spellings do the same.
        os.execv(sys.executable, [sys.executable, "-m", f"tftrain.{name}", *rest])
    if name == "docs":
        guides.show(next((arg for arg in rest if not arg.startswith("-")), ""))
    elif name in ("--version", "-version"):
        help.print_text(f"tftrain {tftrain.__version__}")
    elif name in ("--help", "-help", "-h", "--helpfull", "help"):
        help.print_text(help.listing())
    help.refuse_name("program", name, [*help.PROGRAMS, "docs"], help.listing())


if __name__ == "__main__":
    main()
