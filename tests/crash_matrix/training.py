"""Starts a training of several ranks with faults in it, and waits until every rank has ended."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kit.ranks import started_ranks

# The product's limits are longer than a test may wait.
LIMITS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_USE_LEGACY_KERAS": "1"}
# `python -c PROGRAM FAULTS FLAGS` installs the fault of its rank and then does what `python -m tftrain.run FLAGS` does.
PROGRAM = """
import json, os, sys
from tests.crash_matrix import faults
from tftrain import run
faults.install(json.loads(sys.argv.pop(1))[int(os.environ.get("HOROVOD_RANK", 0))])
sys.exit(run.main(["tftrain.run", *sys.argv[1:]]))
"""


class Start(NamedTuple):
    """Ranks that have run."""

    logs: list[Path]  # each rank's output
    codes: list[int | None]  # by rank, None for one that had to be killed because the time was up
    seconds: float  # from the first end of a rank to the last, or to that kill

    @property
    def output(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self.logs)


def start(
    args: Sequence[str], faults: Sequence[dict | None], folder: Path, seconds: float = 300, after: float = 60
) -> Start:
    """Runs `python -m tftrain.run` with `args` until every rank has ended; each has its fault, see `faults.install`.

    All ranks are killed after `seconds`, or `after` seconds after the first one has ended. The logs are in the folder.
    """
    number = len(list(folder.glob("*_rank_0.log")))
    logs = [folder / f"{number:03d}_rank_{rank}.log" for rank in range(len(faults))]
    command = ["-c", PROGRAM, json.dumps(faults), *args]
    # In one group, because a fault may kill all ranks at once.
    with started_ranks(len(faults), command, environ=LIMITS, outputs=logs, one_group=True) as ranks:
        ending = ranks.finish(seconds, after)
    return Start(logs, ending.codes, ending.seconds)
