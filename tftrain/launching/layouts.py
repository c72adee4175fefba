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

from tftrain.checkpoint import folder, manifest
from tftrain.config.fields import ConfigError
from tftrain.host.exit_codes import ExitCode
from tftrain.host.units import GB
from tftrain.plan import choice
from tftrain.plan.cluster import Cluster
from tftrain.plan.config import PlanConfig
from tftrain.plan.forecast import Forecast
from tftrain.plan.search import SearchResult
from tftrain.plan.system import Constants
from tftrain.plan.workload import Workload

logger = logging.getLogger(__name__)

# What a rank ends with that was short of memory; the kernel kills it with SIGKILL.
OUT_OF_MEMORY = (ExitCode.OUT_OF_MEMORY, ExitCode.SIGNALLED + signal.SIGKILL)
LESS = 0.9  # share of the memory that a layout was planned with, of which the next one has at most as much
SLOWER = 1.2  # how much longer than planned a step may take
WARM_UP = 2  # steps of a start that are not measured
MEASURED = 3  # steps after them
ROWS = 50  # last ones of metrics.jsonl that are read


class Layouts:
    """The layouts of a run, of which `plan` is the current one."""

    def __init__(
        self,
        config: PlanConfig,
        given: Collection[str],
        cluster: Cluster,
        constants: Constants,
        kept: Forecast | None = None,
    ):
        """Chooses the first layout, and prints it.

        Args:
            config, given, cluster, constants: see `choice.choose`.
            kept: the layout of a checkpoint, with which the run goes on; None to search one.

        Raises:
            ConfigError: see `choice.choose`.
        """
        self._config, self._given, self._cluster, self._constants = config, given, cluster, constants
        self._seconds: dict[Workload, float] = {}  # Measured.
        self._output_dir = Path(config.run.output_dir)
        self._metrics, self._newest = self._output_dir / "metrics.jsonl", self._newest_checkpoint()
        self._take(SearchResult(1, 1, [kept]) if kept else choice.choose(config, given, cluster, constants))

    @property
    def memory_gb(self) -> float:
        """Memory of a rank in the current layout."""
        return self.plan.memory.minimum / GB

    def arguments(self) -> list[str]:
        """Returns the flags of the current layout; after a start that has saved, the run goes on from there."""
        resume = [] if self._newest_checkpoint() == self._newest else ["--resume=auto"]
        return [*choice.arguments(self.plan.work, self._config, self._given), *resume]

    def begin(self, checkpoint: Path | None) -> None:
        """Records what a start of the ranks continues from, None for a fresh start."""
        self._done = manifest.read(checkpoint).step if checkpoint else 0
        self._file = _number(self._metrics)

    def is_slow(self) -> bool:
        """Returns whether the first steps took longer than another layout needs; the job asks until they are done."""
        if self.plan.work in self._seconds or _number(self._metrics) == self._file:
            return False  # A start replaces the file.
        if (seconds := step_seconds(self._metrics, self._done)) is None:
            return False
        self._seconds[self.plan.work] = seconds
        self._next = self._best()
        if self._next is not self.plan:
            logger.warning(f"layout: a step takes {seconds:.3f} s, planned {self.plan.seconds:.3f} s; the run saves")
        return self._next is not self.plan

    def go_on(self, code: int) -> bool:
        """Takes the next layout after a job that ended with an exit code; returns whether there is one."""
        if code == ExitCode.STOPPED and self._next is not self.plan:
            self.plan = self._next
            logger.warning(f"layout: going on with {choice.words(self.plan.work)}")
            return True
        if code not in OUT_OF_MEMORY:
            return False
        smaller = dataclasses.replace(self._cluster, memory_gb=LESS * self.memory_gb)
        logger.warning(f"layout: out of memory with a plan of {self.memory_gb:.2f} GB for a rank; taking one with less")
        try:
            self._take(choice.choose(self._config, self._given, smaller, self._constants))
        except ConfigError as error:
            logger.error(error)
            return False
        return True

    def _take(self, found: SearchResult) -> None:
        self._found = found
        self.plan = self._next = self._best()
        logger.info("\n".join(choice.lines(found)))

    def _best(self) -> Forecast:
        """Returns the layout that is the fastest as measured; one that was not measured may be slower than planned."""
        return min(self._found.fastest, key=lambda plan: self._seconds.get(plan.work, SLOWER * plan.seconds))

    def _newest_checkpoint(self) -> Path | None:
        return next(reversed(folder.find(self._output_dir)), None)


def step_seconds(metrics: Path, done: int) -> float | None:
    """Returns the least seconds of a step, of the first ones after `done` updates; None if there are too few yet."""
    try:
        rows = [json.loads(line) for line in metrics.read_text().splitlines()[-ROWS:]]
    except (OSError, ValueError):  # It is being written.
        return None
    found = {row["step"]: row["step_time_s"] for row in rows if row.get("step_time_s") and row["step"] > done + WARM_UP}
    return min(found.values()) if found and max(found) >= done + WARM_UP + MEASURED else None


def _number(path: Path) -> int | None:
    """Returns what tells a file from one that replaces it; None if it is not there."""
    return path.stat().st_ino if path.exists() else None
