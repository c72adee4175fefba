"""`--layout=auto`: the layouts that a run has, one after the other, until one neither runs out of memory nor is slow.

A layout that ran out of memory is followed by the fastest that needs less. A layout whose first steps take longer than
another is planned for is followed by that one. Each layout is measured once, so this ends, at last with the fastest.
"""

import dataclasses
import json
import logging
import signal
from collections.abc import Collection
from pathlib import Path

from tftrain.checkpoint import folder
from tftrain.config.fields import ConfigError
from tftrain.host.exit_codes import ExitCode
from tftrain.host.units import GB
from tftrain.plan import choice
from tftrain.plan.forecast import Forecast
from tftrain.plan.search import SearchResult
from tftrain.plan.workload import Workload

logger = logging.getLogger(__name__)

# What a rank ends with that was short of memory; the kernel kills it with SIGKILL.
OUT_OF_MEMORY = (ExitCode.OUT_OF_MEMORY, ExitCode.SIGNALLED + signal.SIGKILL)
LESS = 0.8  # share of the planned memory, without the reserve of TensorFlow itself, that the next layout may need
SLOWER = 1.2  # how much longer than planned a step may take
FIRST_STEPS = 5  # The time of a step is known after as many steps of a start, the first of which compiles.
ROWS = 50  # last ones of metrics.jsonl that are read


class Layouts:
    """The layouts of a run, of which `plan` is the current one."""

    def __init__(self, request: choice.Request, kept: Forecast | None = None):
        """Chooses the first layout: `kept`, that of a checkpoint, or the fastest; may raise what `choose` raises."""
        self._request, self._output_dir = request, request.config.run.folder
        self._newest = folder.newest(self._output_dir)
        self._seconds: dict[Workload, float] = {}  # Measured.
        self._take(SearchResult(0, 0, [kept]) if kept else choice.choose(request))

    @property
    def memory_gb(self) -> float:
        """Planned memory of a rank in the current layout."""
        return self.plan.memory.minimum / GB

    def arguments(self) -> list[str]:
        """Returns the flags for the next start, which goes on from what the last one has saved."""
        self._logged = set(logged_lines(self._output_dir))
        resume = [] if folder.newest(self._output_dir) == self._newest else ["--resume=auto"]
        is_kept = not self._result.candidates  # The checkpoint has its flags.
        return [*([] if is_kept else choice.arguments(self.plan.work, self._request)), *resume]

    def is_slow(self) -> bool:
        """Returns whether the first steps took longer than another layout needs; the job asks until they are done."""
        work = self.plan.work
        if work in self._seconds or (seconds := step_seconds(self._output_dir, self._logged, work)) is None:
            return False
        self._seconds[work] = seconds
        self._next = self._best()
        if self._next is not self.plan:
            logger.warning(f"layout: a step takes {seconds:.3f} s, planned {self.plan.seconds:.3f} s; the run saves")
        return self._next is not self.plan

    def go_on(self, code: int) -> bool:
        """Takes the next layout after a job that ended with an exit code; returns whether there is one."""
        if code == ExitCode.STOPPED and self._next is not self.plan:
            self.plan = self._next
            logger.warning(f"layout: continuing with {choice.describe(self.plan.work)}")
            return True
        if code not in OUT_OF_MEMORY:
            return False
        reserve = self._request.constants.reserve_gb
        limit = (reserve + LESS * (self.memory_gb - reserve)) / (1 - self._request.config.plan.memory_margin)
        smaller = dataclasses.replace(self._request.cluster, memory_gb=limit)
        logger.warning(f"layout: out of memory with a plan of {self.memory_gb:.2f} GB for a rank; trying one with less")
        try:
            self._take(choice.choose(self._request._replace(cluster=smaller)))
        except ConfigError as error:
            logger.error(error)
            return False
        return True

    def _take(self, result: SearchResult) -> None:
        self._result = result
        self.plan = self._next = self._best()
        logger.info("\n".join(choice.lines(result)))

    def _best(self) -> Forecast:
        """Returns the layout that is the fastest as measured; one that was not measured may be slower than planned."""
        return min(self._result.fastest, key=lambda plan: self._seconds.get(plan.work, SLOWER * plan.seconds))


def logged_lines(output_dir: str) -> list[str]:
    """Returns the lines of metrics.jsonl; none as long as there is no such file."""
    try:
        return (Path(output_dir) / "metrics.jsonl").read_text().splitlines()
    except (OSError, ValueError):
        return []


def step_seconds(output_dir: str, logged: Collection[str], work: Workload) -> float | None:
    """Returns the least seconds of a planned step in lines not in `logged`; None as long as there are too few."""
    try:
        rows = [json.loads(line) for line in logged_lines(output_dir)[-ROWS:] if line not in logged]
    except ValueError:  # One is being written.
        return None
    planned = {"global_batch_size": work.global_batch, "max_seq_length": work.seq}.items()  # Phases and ramps differ.
    rows = [row for row in rows if row.get("step_time_s") and planned <= row.items()]
    enough = len(rows) > 1 and rows[-1]["step"] >= rows[0]["step"] + FIRST_STEPS - 1
    return min(row["step_time_s"] for row in rows) if enough else None
