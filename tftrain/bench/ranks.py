"""Table `ranks`: the seconds that 2 to 64 ranks on one host take to start, as programs or forked, and their memory.

Memory is the proportional set size, PSS: a page that n processes share counts 1/n for each.
"""

import contextlib
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import psutil

from tftrain.bench.config import BenchConfig
from tftrain.bench.table import BenchTable, Record, Say, TableRow, columns, each_row
from tftrain.bench.training.run import QUIET, execute
from tftrain.bench.worker import MeasureError
from tftrain.page.bars import BarSeries, Panel

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
HOROVOD_LIMITS = ("HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
# Reading the memory of many ranks takes a while: about this share of the time goes into it.
SAMPLING_SHARE = 0.1
FIRST_PAUSE, SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.5, 5.0


class RankMemory(NamedTuple):
    """Memory of the ranks: PSS in bytes, of all and of the largest one, and the most threads of a rank."""

    total: int
    largest: int
    threads: int


def records(row: TableRow, config: BenchConfig, _say: Say) -> list[Record]:
    """Starts the ranks of a row once."""
    limits = {name: os.environ.get(name, str(LIMIT_SECONDS)) for name in HOROVOD_LIMITS}
    with tempfile.TemporaryDirectory(prefix="tftrain_bench_") as folder:
        seconds, memory = measure(command(row, folder, config), limits, AWAITED, LIMIT_SECONDS)
    names = ("connected_s", "built_s", "first_step_s", "third_step_s")
    sizes = {"pss_gb": memory.total / 1e9, "largest_pss_gb": memory.largest / 1e9, "threads": memory.threads}
    return [{**row.settings, **dict(zip(names, seconds, strict=True)), **sizes}]


def command(row: TableRow, folder: str, config: BenchConfig) -> list[str]:
    """Returns the command of a row; each data parallel rank has one sample."""
    settings = row.settings
    launcher = [sys.executable, "-m", "tftrain.launch", "-np", str(settings["ranks"]), *STARTS[settings["start"]]]
    run = ["--micro_batch_size=1", f"--max_steps={STEPS}", "--log_format=megatron", f"--output_dir={folder}/run"]
    return [*launcher, *MODEL, *LAYOUTS[settings["layout"]], *QUIET, *PATIENCE, *run, *config.run_flags()]


def measure(
    command: Sequence[str], environ: Mapping[str, str], awaited: Sequence[str], limit: float
) -> tuple[list[float], RankMemory]:
    """Runs a command that starts ranks; the last process in each line of descent is a rank.

    Args:
        command, environ, limit: see `execute`.
        awaited: texts of lines that the command prints, in this order.

    Returns:
        The seconds from its start to each line, and the highest of each figure of its memory.

    Raises:
        MeasureError: it failed, took longer, or did not print a line.
    """
    begin, seconds, sampled, ended = time.monotonic(), [], [], threading.Event()

    def hear(line: str) -> None:
        if len(seconds) < len(awaited) and awaited[len(seconds)] in line:
            seconds.append(time.monotonic() - begin)

    def watch(pid: int) -> None:
        sampled.append(pool.submit(highest_memory, psutil.Process(pid), ended))

    with ThreadPoolExecutor() as pool:
        try:
            execute(command, limit, environ, watch, hear)
        finally:
            ended.set()
    if len(seconds) < len(awaited):
        raise MeasureError(f"it did not print {awaited[len(seconds)]!r}")
    return seconds, sampled[0].result()


def memory_of(pids: Iterable[int]) -> RankMemory:
    """Returns the memory of processes, without those that have ended."""
    sizes, threads = [0], [0]
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            threads.append(process.num_threads())
            sizes.append(process.memory_full_info().pss)
    return RankMemory(sum(sizes), max(sizes), max(threads))


def highest_memory(root: psutil.Process, ended: threading.Event) -> RankMemory:
    """Measures the leaves of a tree of processes until `ended` is set; returns the highest of each figure."""
    highest, pause = RankMemory(0, 0, 0), FIRST_PAUSE
    while not ended.wait(pause):
        begin = time.monotonic()
        with contextlib.suppress(psutil.Error):
            below = root.children(recursive=True)
            parents = {root.pid, *(process.ppid() for process in below)}
            current = memory_of(process.pid for process in (root, *below) if process.pid not in parents)
            highest = RankMemory(*map(max, highest, current))
        least = min(2 * pause, SHORTEST_PAUSE)  # A command may take less than a second.
        pause = min(max(least, (time.monotonic() - begin) / SAMPLING_SHARE), LONGEST_PAUSE)
    return highest


RANKS = BenchTable(
    "ranks",
    "many ranks on this host: seconds until the third step, and memory",
    columns(
        "ranks:0 layout start connected_s:1 built_s:1 first_step_s:1 third_step_s:1 pss_gb:2 largest_pss_gb:2 threads:0"
    ),
    tuple(
        TableRow(f"{ranks}/{name}/{start}", f"{ranks}/{name}", {"ranks": ranks, "layout": name, "start": start})
        for ranks, name, start in itertools.product(NUMBERS, LAYOUTS, STARTS)
    ),
    each_row(records),
    panels=(
        Panel("Seconds until the third step", (BarSeries("third_step_s"),), ".1f", " s"),
        Panel("Memory of all ranks, GB", (BarSeries("pss_gb"),), ".2f", " GB"),
    ),
    chart_note="A bar is one start of so many ranks, and its label is the same number.",
    row_by_row=True,
)
