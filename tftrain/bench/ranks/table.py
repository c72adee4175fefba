"""The rows of table `ranks`: 2 to 64 ranks on this host, each a program of its own or forked from one process."""

import os
import sys
import tempfile

from tftrain.bench.bars import Panel, Series
from tftrain.bench.config import BenchConfig
from tftrain.bench.ranks import job
from tftrain.bench.table import Record, Row, Say, Table, columns, each_row
from tftrain.bench.training.run import QUIET
from tftrain.bench.worker import with_package

NUMBERS = (2, 4, 8, 16, 32, 64)
LAYOUTS = {"dp": (), "dp_tp2_zero1": ("--tensor_parallel_size=2", "--split_opt_state")}
STARTS = {"programs": (), "forked": ("--fork_ranks",)}
MODEL = ("--flagfile=configs/tiny.flags", "--synthetic_data", "--vocab_size=1000", "--max_seq_length=32")
STEPS = 3
LIMIT_SECONDS = 3600
# Lines of the chief. It prints the first when all ranks are connected, and the second before it traces the step.
AWAITED = ("model ", "compiling the step", f"1/{STEPS:8}", f"{STEPS}/{STEPS:8}")
# A rank that is late is no failure here, nor is a planned size: ranks share memory that the planner counts for each.
PATIENCE = ("--start_timeout_seconds=3600", "--step_timeout_seconds=3600", "--nocheck_memory")

COLUMNS = columns(
    "ranks:0 layout start connected_s:1 built_s:1 first_step_s:1 third_step_s:1 pss_gb:2 largest_pss_gb:2 threads:0"
)


def rows() -> tuple[Row, ...]:
    """Returns a row for each number of ranks, layout and way to start."""
    return tuple(
        Row(f"{number}/{layout}/{start}", f"{number}/{layout}", {"ranks": number, "layout": layout, "start": start})
        for number in NUMBERS
        for layout in LAYOUTS
        for start in STARTS
    )


def records(row: Row, config: BenchConfig, _say: Say) -> list[Record]:
    """Starts the ranks of a row once."""
    with tempfile.TemporaryDirectory(prefix="tftrain_bench_") as folder:
        found = job.measure(command(row, folder, config), environment(), AWAITED, LIMIT_SECONDS)
    names = ("connected_s", "built_s", "first_step_s", "third_step_s")
    memory = {"pss_gb": found.memory.total / 1e9, "largest_pss_gb": found.memory.largest / 1e9}
    seconds = dict(zip(names, found.seconds, strict=True))
    return [{**row.settings, **seconds, **memory, "threads": found.memory.threads}]


def command(row: Row, folder: str, config: BenchConfig) -> list[str]:
    """Returns the command of a row; each data parallel rank has one sample."""
    settings = row.settings
    launcher = [sys.executable, "-m", "tftrain.launch", "-np", str(settings["ranks"]), *STARTS[settings["start"]]]
    run = ["--micro_batch_size=1", f"--max_steps={STEPS}", "--log_format=megatron", f"--output_dir={folder}/run"]
    return [
        *launcher,
        *MODEL,
        *LAYOUTS[settings["layout"]],
        *QUIET,
        *PATIENCE,
        *run,
        *config.run_flags(),
    ]


def environment() -> dict[str, str]:
    """Returns the environment of the launcher, with Horovod's time limits raised."""
    limits = dict.fromkeys(("HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"), str(LIMIT_SECONDS))
    return with_package({**limits, **os.environ})


RANKS = Table(
    "ranks",
    "many ranks on this host: seconds until the third step, and memory",
    COLUMNS,
    rows(),
    each_row(records),
    panels=(
        Panel("Seconds until the third step", (Series("third_step_s"),), ".1f", " s"),
        Panel("Memory of all ranks, GB", (Series("pss_gb"),), ".2f", " GB"),
    ),
    chart_note="A bar is one start of so many ranks, and its label is the same number.",
    row_by_row=True,
)
