"""The flags of `python -m tftrain.bench`."""

import shlex
from dataclasses import dataclass

from tftrain.fields import Problem, field_problems, flag

FORMATS = ("csv", "md", "json")


@dataclass(frozen=True)
class BenchConfig:
    """Which rows of which table are measured, how long, and where the figures go."""

    list: bool = flag(False, "Print the tables and their rows, and measure nothing.")
    table: str | None = flag(None, "The table to measure, or all; --list names them.")
    rows: str = flag("*", "Glob of row names, or several with commas between them.")
    steps: int | None = flag(
        None, "Measurements of each row, of which the median counts; by default the table's own.", minimum=1
    )
    np: int | None = flag(None, "Ranks of every run, where rows are runs; by default the table's own.", minimum=1)
    rounds: int = flag(
        1, "Runs of each row, where rows are runs, in turn with those of its base row; the median counts.", minimum=1
    )
    scale: str = flag(
        "auto",
        "Share of layers, width and batch that a published row keeps: full, a factor, or auto, the largest power of "
        "1/2 with which all rows of its table fit this machine and take a few seconds a step.",
    )
    output_dir: str = flag(
        "build/bench", "Folder for the finished rows (TABLE.jsonl) and the report (TABLE.FORMAT, .png, .html)."
    )
    format: str = flag("csv", "Format of the report.", choices=FORMATS)
    resume: bool = flag(False, "Keep the rows that output_dir already has, and measure only the others.")
    cpu_threads: int = flag(0, "Threads of every process that measures; 0: one a core.", minimum=0)
    working_set_mb: float | None = flag(
        None, "Bytes that a kernel moves at least, in 1e6; by default 8 times the last-level cache.", above=0
    )
    extra_flags: str = flag("", "Flags of tftrain.run, with blanks between, behind those of each row that trains.")
    torch_python: str | None = flag(
        None, "Python that has torch and transformers, for the rows of table peers that need them; by default this one."
    )

    def problems(self) -> "list[Problem]":
        """Returns every reason to refuse this configuration."""
        found = field_problems(self)
        if not self.list and not self.table:
            found.append(Problem("table", None, "expected the name of a table; --list names them all"))
        if not _is_scale(self.scale):
            expected = "expected auto, full, or a factor above 0 and up to 1, such as 0.125"
            found.append(Problem("scale", self.scale, expected))
        try:
            shlex.split(self.extra_flags)
        except ValueError as error:
            found.append(Problem("extra_flags", self.extra_flags, f"expected flags as a shell splits them: {error}"))
        return found


def _is_scale(given: str) -> bool:
    try:
        return given in ("auto", "full") or 0 < float(given) <= 1
    except ValueError:
        return False
