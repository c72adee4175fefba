"""One run of `tftrain.run`, as a user starts it, in a temporary folder: flags and ranks in, its metrics.jsonl out."""

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tftrain.bench.worker import ROOT, MeasureError, with_package

# The first step compiles, and the second one is followed by the report on memory.
WARM_UP = 2
LIMIT_SECONDS = 600
STOP_SECONDS = 20
FORKED_FROM = 8  # ranks; so many imports of TensorFlow would take a minute of a small machine
REASON_LENGTH = 300

# The least work at the end of a run; flags of the row override these.
QUIET = ("--log_every=1", "--eval_every=-1", "--checkpoint_every=0", "--keep_last=1")

PROGRAM_ERROR = re.compile(r"tftrain\.(?:run: |launch: (?=--))(?!--help=)(.*)")
EXCEPTION = re.compile(r"(?<![\w.])[\w.]*(?:Error|Exception)\b.*")
STATE = re.compile(r"state bytes per rank: (\d+)(?: \(rank (\d+)\) to (\d+) \(rank (\d+)\))?")


@dataclass(frozen=True)
class Figures:
    """The figures of a run."""

    step_seconds: list[float]  # each counted step's
    samples_per_sec: float  # all ranks together, at the median step
    peak_gb: float  # peak memory of the fullest rank in GB of 1e9 bytes
    peak_rank: int  # that rank
    state_gb_per_rank: float  # GB of weights, master weights and moments on the rank with the most of them
    state_rank: int  # that rank; 0 if all are equal
    memory: dict[str, int]  # memory of the fullest rank by kind, the fields `memory_*` of metrics.jsonl, in bytes
    skipped_steps: int  # updates skipped because of a gradient that was not finite


def measure(flags: Sequence[str], ranks: int, steps: int, seconds: float = LIMIT_SECONDS) -> Figures:
    """Trains with these flags and returns the figures of so many `steps` after the warm-up, see `train`."""
    return figures(*train(flags, ranks, WARM_UP + steps, seconds), WARM_UP)


def train(
    flags: Sequence[str], ranks: int, steps: int, seconds: float = LIMIT_SECONDS, **options
) -> tuple[list[dict[str, Any]], str]:
    """Trains for some steps with `options` of `launch`; returns the rows of metrics.jsonl and the printed text.

    `flags` are flags of tftrain.run, without those for its length, its log and its output.
    """
    with tempfile.TemporaryDirectory(prefix="tftrain_bench_") as folder:
        arguments = [*QUIET, *flags, f"--max_steps={steps}", f"--output_dir={folder}/run"]
        output = launch(arguments, ranks, seconds, **options)
        return [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()], output


def figures(rows: Sequence[dict[str, Any]], output: str, warm_up: int) -> Figures:
    """Returns the figures of a run from what `train` returns; the first `warm_up` steps do not count.

    Skipped steps do not count either, because they do less work. Raises a MeasureError if no counted step is left, or
    if the line on state bytes is missing.
    """
    train = [row for row in rows if "step_time_s" in row]
    skipped = [row["skipped_steps"] for row in train]
    applied = [row for row, before, now in zip(train, [0, *skipped], skipped, strict=False) if now == before]
    counted = [row for row in applied if row["step"] > warm_up and row["step_time_s"]]
    if not counted:
        left_out = f"{warm_up} of them to warm up, {max(skipped, default=0)} were skipped"
        raise MeasureError(f"of {len(train)} steps, {left_out}")
    seconds = [row["step_time_s"] for row in counted]
    state = STATE.search(output)
    if state is None:
        raise MeasureError("the run printed no line on state bytes per rank")
    smallest, _, largest, rank = state.groups()
    memory = next((row for row in rows if "memory_rank" in row), {})
    return Figures(
        step_seconds=seconds,
        samples_per_sec=counted[-1]["global_batch_size"] / statistics.median(seconds),
        peak_gb=train[-1]["peak_memory_gb"],
        peak_rank=train[-1]["peak_memory_rank"],
        state_gb_per_rank=int(largest or smallest) / 1e9,
        state_rank=int(rank or 0),
        memory={name: value for name, value in memory.items() if name.startswith("memory_")},
        skipped_steps=skipped[-1],
    )


def launch(
    flags: Sequence[str], ranks: int, seconds: float, module: str = "tftrain.run", environ: dict[str, str] | None = None
) -> str:
    """Runs a module, or on several ranks of this host `tftrain.launch`; returns the printed text of all ranks.

    The launcher forks the ranks if there are `FORKED_FROM` or more. For time limit, variables and errors see `execute`.
    """
    if ranks > 1:
        forked = ["--fork_ranks"] if ranks >= FORKED_FROM else []
        module, flags = "tftrain.launch", ["-np", str(ranks), *forked, *flags]
    return "\n".join(execute([sys.executable, "-m", module, *flags], seconds, environ or {}))


def execute(
    command: Sequence[str],
    seconds: float,
    environ: Mapping[str, str],
    on_start: Callable[[int], Any] = lambda pid: None,
    on_line: Callable[[str], Any] = lambda line: None,
) -> list[str]:
    """Runs a command in the repository and returns the lines that it printed.

    Args:
        command: starts a program that ends its own processes when it is told to.
        seconds: the time limit.
        environ: variables besides those of this process.
        on_start: called with the number of the process.
        on_line: called from another thread with each line as it comes.

    Raises:
        MeasureError: the exit code was not 0, or the time limit was exceeded.
    """
    lines = []
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=with_package({**os.environ, "PYTHONUNBUFFERED": "1", **environ}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def read():
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            on_line(lines[-1])

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        on_start(process.pid)
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        advice = "fewer --steps or a smaller model take less"
        raise MeasureError(f"it was not done after {seconds:.0f} s; {advice}") from None
    finally:
        _end(process)
        reader.join(STOP_SECONDS)  # not for ever: a process that survived the launcher would hold the pipe
    if code:
        raise MeasureError(reason(lines, code))
    return lines


def reason(lines: Sequence[str], code: int) -> str:
    """Returns the reason of a failure in one line: the program's error, else its last exception, else its last line."""
    ours = dict.fromkeys(found[1] for line in lines if (found := PROGRAM_ERROR.search(line)))
    exceptions = [line for line in lines if EXCEPTION.fullmatch(line)]
    last = exceptions or [line for line in lines if line.strip()] or ["it printed nothing"]
    words = "; ".join(ours) or last[-1]
    return f"exit code {code}: {' '.join(words.split())[:REASON_LENGTH]}"


def _end(process: subprocess.Popen) -> None:
    """Ends a launcher that still runs: SIGTERM first, so that it ends its ranks, then SIGKILL."""
    for sign, wait in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
