"""Lists the programs: `python -m tftrain`."""

import ast
from pathlib import Path

from tftrain.cli import flags

PROGRAMS = ("prepare", "run", "launch", "plan", "report", "predict", "export", "convert", "schedules", "bench")


def listing() -> str:
    """Returns a line for each program: its name, and what it does as its docstring says."""
    root, lines = Path(__file__).parent, []
    for name in PROGRAMS:
        path = next(path for path in (root / f"{name}.py", root / name / "__main__.py") if path.exists())
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        lines.append(f"  python -m tftrain.{name:<10} {first.partition(': ')[0].rstrip('.')}")
    return "\n".join(["usage: python -m tftrain.PROGRAM --help", "", *lines])


if __name__ == "__main__":
    flags.print_help(listing())
