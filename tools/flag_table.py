"""Writes docs/flags.md, the flags of all programs, from their declarations: `python tools/flag_table.py`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tftrain.bench.config import BenchConfig
from tftrain.cli.help import described
from tftrain.config.convert import ConvertConfig
from tftrain.config.export import ExportConfig
from tftrain.config.fields import ON_RESUME, sections
from tftrain.config.predict import PredictConfig
from tftrain.config.prepare import PrepareConfig
from tftrain.config.train import TrainConfig
from tftrain.launching.config import LaunchConfig
from tftrain.plan.config import PlanConfig
from tftrain.schedules.config import ScheduleConfig

sys.path.insert(0, str(Path(__file__).parent))
from environment_variables import VARIABLES

PAGE = Path(__file__).resolve().parents[1] / "docs/flags.md"
PROGRAMS = {
    "tftrain.run": TrainConfig,
    "tftrain.launch": LaunchConfig,
    "tftrain.prepare": PrepareConfig,
    "tftrain.convert": ConvertConfig,
    "tftrain.predict": PredictConfig,
    "tftrain.export": ExportConfig,
    "tftrain.plan": PlanConfig,
    "tftrain.bench": BenchConfig,
    "tftrain.schedules": ScheduleConfig,
}
INTRODUCTION = """# Flags

`python tools/flag_table.py` writes this page from the declarations; `--help=FLAG` of a program explains one flag. Flags
that programs share are listed once, under the first of them: `tftrain.launch` and `tftrain.plan` take all flags
of `tftrain.run`, and `tftrain.export` takes the flags of `tftrain.predict` that name the model. `tftrain.launch` also
takes the spellings of `horovodrun`, such as `-np`, `-H` and `--num-proc`. Some flags of the model have other defaults
with some families: [families.md](families.md).
`tftrain.report` has no flags: its arguments are the output folders of runs. [Environment
variables](#environment-variables) are at the end.

The column "on resume" says whether a flag may differ from its value in the checkpoint that a run resumes from. A flag
that the command line does not give has the checkpoint's value, unless it is local.

"""


ENVIRONMENT = """
## Environment variables

tftrain sets or reads these variables. Your own value takes precedence where the column "set by" says so. Set it in the
environment of the launcher: `tftrain.launch` passes the variables of Horovod, NCCL, XLA, TensorFlow and CUDA to all
hosts, and others that `--pass_env` names. Other variables of these libraries work as their own documentation says. The
variables of credentials for addresses are in [data.md](data.md#text-at-addresses).

"""


def page() -> str:
    """Returns the page."""
    lines, shown = [INTRODUCTION + "\n".join(f"- {kind}: {words}." for kind, words in ON_RESUME.items())], set()
    for program, config_class in PROGRAMS.items():
        own = [section for section in sections(config_class()) if section.__class__ not in shown]
        shown |= {section.__class__ for section in own}
        lines += ["", f"## {program}", "", *table(own)]
    head = ["variable", "default", "set by", "meaning"]
    named = [[f"`{each.name.replace(', ', '`, `')}`", *each[1:]] for each in VARIABLES]
    return "\n".join(lines) + "\n" + ENVIRONMENT + "\n".join(rows([head, ["---"] * len(head), *named])) + "\n"


def table(own: Sequence[Any]) -> list[str]:
    """Returns a table of several sections: a line for each section, and one for each of its flags."""
    flags = [described(section) for section in own]
    resumes = any(flag.on_resume for listed in flags for flag in listed)
    head = ["flag", "default", "values", *(["on resume"] if resumes else []), "meaning"]
    cells = [head, ["---"] * len(head)]
    for section, listed in zip(own, flags, strict=True):
        cells.append([f"**{section.__doc__.strip().splitlines()[0]}**", *[""] * (len(head) - 1)])
        for flag in listed:
            kind = [flag.on_resume] if resumes else []
            cells.append([f"`--{flag.name}`", flag.default, flag.values, *kind, flag.help])
    return rows(cells)


def rows(cells: list[list[str]]) -> list[str]:
    """Returns the lines of a table."""
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]


if __name__ == "__main__":
    PAGE.write_text(page())
