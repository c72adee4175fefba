"""Starts a training of several ranks with faults in it, and waits until every rank has ended."""

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.distributed import places, rank_server, settings
from tests.rank_server import ForkedRank

# The product's limits are longer than a test may wait.
LIMITS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_USE_LEGACY_KERAS": "1"}
# `python -c PROGRAM FAULT FLAGS` installs the fault and then does what `python -m tftrain.run FLAGS` does.
PROGRAM = """
import json, sys
from tests.crash_matrix import faults
from tftrain import run
faults.install(json.loads(sys.argv.pop(1)))
sys.exit(run.main(["tftrain.run", *sys.argv[1:]]))
"""


@dataclass
class Start:
    """Ranks that run or have run.

    Attributes:
        pids: by rank.
        logs: each rank's output.
        codes: by rank, None for one that had to be killed because the time was up.
        seconds: from the first end of a rank to the last, or to that kill.
    """

    pids: list[int]
    logs: list[Path]
    codes: list[int | None] = field(default_factory=list)
    seconds: float = 0

    @property
    def output(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self.logs)


def start(args: Sequence[str], faults: Sequence[dict | None], folder: Path, seconds=300, after=60) -> Start:
    """Runs a training until every rank has ended.

    Args:
        args: what follows `python -m tftrain.run`.
        faults: for each rank the fault to inject, see `faults.install`.
        folder: for the logs; the next number is taken for their names.
        seconds: after this time all ranks are killed.
        after: all ranks are killed this long after the first one has ended.

    Returns:
        The Start.
    """
    number = len(list(folder.glob("*_rank_0.log")))
    with places(len(faults)) as environs:
        logs = [folder / f"{number:03d}_rank_{rank}.log" for rank in range(len(faults))]
        ranks = rank_server().fork(
            [["-c", PROGRAM, json.dumps(fault), *args] for fault in faults],
            [{**settings(LIMITS), **environ} for environ in environs],
            logs,
            one_group=True,  # A fault may kill all ranks at once.
        )
        codes, ended = wait(ranks, seconds, after)
        return Start([rank.pid for rank in ranks], logs, codes, ended)


def wait(ranks: Sequence[ForkedRank], seconds: float, after: float) -> tuple[list[int | None], float]:
    """Waits until every rank has ended, and kills those that have not in time; returns `codes` and `seconds`."""
    end, first, codes = time.monotonic() + seconds, None, []
    try:
        while None in (codes := [rank.poll() for rank in ranks]) and time.monotonic() < end:
            if first is None and codes != [None] * len(codes):
                first = time.monotonic()
                end = min(end, first + after)
            time.sleep(0.02)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.kill(rank.pid, signal.SIGKILL)
                rank.wait()
    return codes, time.monotonic() - (first or time.monotonic())
