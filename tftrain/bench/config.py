"""The flags of `python -m tftrain.bench`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from tftrain.cli import flags
from tftrain.config.fields import Problem, field_problems, flag, refused
from tftrain.config.train import TrainConfig


@dataclass(frozen=True)
class BenchConfig:
    """The rows to measure, the number of measurements, and the files of the report."""

    list: str | None = flag(None, "Print the tables instead of measuring; --list=NAME prints the rows of that table.")
    table: str | None = flag(None, "Table to measure, or all; --list names them.")
    rows: str = flag("*", "Glob of row names, or several globs separated by commas.")
    steps: int | None = flag(None, minimum=1)
    """Measurements of each row; their median is reported. By default the table's own number."""
    np: int | None = flag(None, "Ranks of every training run; by default the table's own number.", minimum=1)
    rounds: int = flag(1, "Training runs of each row, in turns with its base row; their median is reported.", minimum=1)
    scale: str = flag("auto")
    """Scale of layers, width and batch of a published row: full, a factor, or auto. auto is the largest power of 1/2
    with which all rows of the table fit this machine and take a few seconds a step."""
    output_dir: str = flag("build/bench", names="path")
    """Folder for the finished rows (TABLE.jsonl) and the report (TABLE.FORMAT, .png, .html)."""
    format: str = flag("csv", "Format of the report.", choices=("csv", "md", "json"))
    resume: bool = flag(False, "Keep the rows in --output_dir that were measured with these flags; measure the others.")
    cpu_threads: int = flag(0, "Threads of every measuring process; 0: one for each core.", minimum=0)
    working_set_mb: float | None = flag(None, "MB that a kernel moves; by default 8 times the largest cache.", above=0)
    extra_flags: str = flag("", "Flags of tftrain.run, separated by blanks; they override those of each training row.")
    torch_python: str | None = flag(None, names="path")
    """Python with torch and transformers for the rows of table peers that need them; by default this Python."""

    def run_flags(self) -> "list[str]":
        """Returns the flags that every run of tftrain.run has at last, so that `extra_flags` win."""
        threads = [f"--cpu_threads={self.cpu_threads}"] if self.cpu_threads else []
        return [*threads, *shlex.split(self.extra_flags)]

    def problems(self) -> "list[Problem]":
        """Returns the problems of this configuration."""
        problems = field_problems(self)
        if not self.list and not self.table:
            problems.append(refused(self, "table", "expected the name of a table; --list names them all"))
        if not _is_scale(self.scale):
            expected = "expected auto, full, or a factor above 0 and up to 1, such as 0.125"
            problems.append(refused(self, "scale", expected))
        try:
            shlex.split(self.extra_flags)
        except ValueError as error:
            problems.append(refused(self, "extra_flags", f"expected flags as a shell splits them: {error}"))
        return problems


def run_config(arguments: Sequence[str], ranks: int = 1) -> TrainConfig:
    """Returns the resolved configuration of flags of tftrain.run; raises a ConfigError if a flag is wrong."""
    return flags.parse(TrainConfig, ["tftrain.run", *arguments]).resolve(ranks)


def _is_scale(scale: str) -> bool:
    try:
        return scale in ("auto", "full") or 0 < float(scale) <= 1
    except ValueError:
        return False
