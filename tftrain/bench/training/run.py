"""One training run, started and heard out: flags and ranks in, step times, peak and state bytes out.

The run is `tftrain.run` under `horovodrun`, as anybody would start it, in a folder that is gone afterwards. What it
wrote to metrics.jsonl is what is reported.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tftrain.bench.worker import ROOT

# The first step compiles, and the report on memory comes after the second.
WARM_UP = 2
LIMIT_SECONDS = 600
STOP_SECONDS = 20
REASON_LENGTH = 300

# Of what every run does at its end, only as much as it must, unless its flags say more.
QUIET = ("--log_every=1", "--eval_every=-1", "--checkpoint_every=0", "--keep_last=1")

PREFIX = re.compile(r"^.*?\[[\d,]+\]<std(?:out|err)>:")
OUR_WORDS = re.compile(r"tftrain\.run: (?!--help lists)(.*)")
EXCEPTION = re.compile(r"[\w.]*(?:Error|Exception)\b.*")
ENDED = re.compile(r"Process \d+ exit with status code.*")
STATE = re.compile(r"state bytes per rank: (\d+)(?: \(rank (\d+)\) to (\d+) \(rank (\d+)\))?")


class RunError(RuntimeError):
    """A run gave no figures; the message says why, in one line."""


@dataclass(frozen=True)
class Figures:
    """What a run has shown.

    Attributes:
        step_seconds: of every counted step.
        samples_per_sec: of all ranks together, at the median of those.
        peak_gb, peak_rank: the most memory that the fullest rank has held, in GB of 1e9 bytes, and which one that is.
        state_bytes, state_rank: weights, master weights and moments on the rank that has the most of them; rank 0 if
            all have equally much.
        memory: the run's record of the fullest rank's memory by kind, `memory_*`, in bytes.
        skipped_steps: updates that a gradient which was not finite has prevented.
    """

    step_seconds: tuple[float, ...]
    samples_per_sec: float
    peak_gb: float
    peak_rank: int
    state_bytes: int
    state_rank: int
    memory: dict[str, int]
    skipped_steps: int


def measure(
    flags: Sequence[str], ranks: int, steps: int, warm_up: int = WARM_UP, seconds: float = LIMIT_SECONDS
) -> Figures:
    """Trains with these flags.

    Args:
        flags: of tftrain.run, but for how long it runs, what it logs and where it writes.
        ranks: processes on this host.
        steps: that count.
        warm_up: steps before them, at least 1.
        seconds: after which the run is ended.

    Raises:
        RunError: it failed, or was not done in time.
    """
    with tempfile.TemporaryDirectory(prefix="tftrain_bench_") as folder:
        given = [*QUIET, *flags, f"--max_steps={warm_up + steps}", f"--output_dir={folder}/run"]
        said = launch(given, ranks, seconds)
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    return figures(rows, said, warm_up)


def figures(rows: Sequence[dict[str, Any]], said: str, warm_up: int) -> Figures:
    """Makes figures of what a run has left.

    Args:
        rows: of metrics.jsonl, with a row for every step.
        said: what it printed; the line on state is in it.
        warm_up: steps that do not count. Nor does a step that was skipped, for it has done less than the others.

    Raises:
        RunError: no step is left, or the line is missing.
    """
    train = [row for row in rows if "step_time_s" in row]
    skipped = [row["skipped_steps"] for row in train]
    applied = [row for row, before, now in zip(train, [0, *skipped], skipped, strict=False) if now == before]
    counted = [row for row in applied if row["step"] > warm_up and row["step_time_s"]]
    if not counted:
        raise RunError(f"of {len(train)} steps, {warm_up} of them to warm up, {max(skipped, default=0)} were skipped")
    seconds = tuple(row["step_time_s"] for row in counted)
    state = STATE.search(said)
    if state is None:
        raise RunError("the run did not say how many bytes of state a rank has")
    least, _, most, rank = state.groups()
    memory = next((row for row in rows if "memory_rank" in row), {})
    return Figures(
        step_seconds=seconds,
        samples_per_sec=counted[-1]["global_batch_size"] / statistics.median(seconds),
        peak_gb=train[-1]["peak_memory_gb"],
        peak_rank=train[-1]["peak_memory_rank"],
        state_bytes=int(most or least),
        state_rank=int(rank or 0),
        memory={name: value for name, value in memory.items() if name.startswith("memory_")},
        skipped_steps=skipped[-1],
    )


def launch(flags: Sequence[str], ranks: int, seconds: float) -> str:
    """Runs `tftrain.run` on so many ranks, without a launcher on one.

    Returns:
        What all ranks printed.

    Raises:
        RunError: it ended with another exit code than 0, or not in time.
    """
    command = [sys.executable, "-m", "tftrain.run", *flags]
    if ranks > 1:
        command = [_horovodrun(), "-np", str(ranks), "--gloo", "--start-timeout", "120", *command]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile(mode="w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        lines = output.read().splitlines()
    if code is None:
        raise RunError(f"it was not done after {seconds:.0f} s; fewer --steps or a smaller model take less")
    if code:
        raise RunError(reason(lines, code))
    return "\n".join(PREFIX.sub("", line) for line in lines)


def reason(lines: Sequence[str], code: int) -> str:
    """Returns in one line why a run failed: its own words, else its last exception, else its last line.

    Args:
        lines: of what was printed. If the launcher has marked those of the ranks, its own count only where they are
            silent, as they are when the system has ended one for want of memory.
        code: its exit code.
    """
    ranks = [PREFIX.sub("", line) for line in lines if PREFIX.match(line)]
    ours = dict.fromkeys(found[1] for line in lines if (found := OUR_WORDS.search(line)))
    ended = [line for line in lines if ENDED.fullmatch(line)]
    exceptions = [[line for line in said if EXCEPTION.fullmatch(line)] for said in (ranks, lines)]
    last = [line for line in lines if line.strip()][-1:] or ["it printed nothing"]
    (words,) = exceptions[0][-1:] or ended[:1] or exceptions[1][-1:] or last
    words = "; ".join(ours) or words
    return f"exit code {code}: {' '.join(words.split())[:REASON_LENGTH]}"


def _horovodrun() -> str:
    beside = Path(sys.executable).parent / "horovodrun"
    found = str(beside) if beside.exists() else shutil.which("horovodrun")
    if found is None:
        raise RunError(f"there is no horovodrun beside {sys.executable}; `make setup` installs it")
    return found


def _end(process: subprocess.Popen) -> None:
    """Ends a launcher that still runs, gently first: then it ends its ranks itself."""
    for sign, wait in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
