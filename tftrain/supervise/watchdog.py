"""The watchdog: a thread that ends the process when something takes longer than its limit.

A rank whose peer has gone may wait for ever, in a place that no exception reaches: in Horovod, in TensorFlow's C++, in
the system's input and output. So a thread counts the seconds, says what was late and what each thread was doing, and
ends the process without asking the others. It counts its own ticks, not the clock's: a process that was stopped and
continued has its whole limit again.
"""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tftrain.checkpoint import folder
from tftrain.checkpoint.errors import CheckpointError
from tftrain.config import RunConfig
from tftrain.exit_codes import ExitCode
from tftrain.parallel.pending_collectives import PendingCollectives

TICK_SECONDS = 0.25
# The report itself may hang: standard error may be full, the output folder's disk gone.
REPORT_SECONDS = 10


@dataclass(eq=False)
class Limit:
    """What must end in time.

    Attributes:
        what: in words.
        seconds: it may take.
        flag: the one that says so.
        code: the process's, if it takes longer.
        left: seconds that remain.
    """

    what: str
    seconds: float
    flag: str
    code: int
    left: float

    def restart(self) -> None:
        """Gives it all its seconds again: it has got on."""
        self.left = self.seconds

    def exceeded(self) -> str:
        """Returns the words for it when its time is up."""
        return f"{self.what} took longer than --{self.flag}={self.seconds:g} seconds"


class Watchdog:
    """The limits of one process.

    Attributes:
        pending: the collectives of this process, whose unfinished ones are named; None before the ranks are connected.
    """

    def __init__(self, rank: int, settings: RunConfig, end: Callable[[int], None] = os._exit):
        """Starts the thread.

        Args:
            rank: of this process.
            settings: how many seconds each limit has; its output_dir gets stacks/rank_N.txt.
            end: ends the process with a code.
        """
        self.pending: PendingCollectives | None = None
        self._rank, self._settings, self._end = rank, settings, end
        self._limits: list[Limit] = []
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, what: str, flag: str, code: int = ExitCode.STALLED) -> Limit:
        """Sets a limit for good, from any thread; see `Limit`."""
        seconds = getattr(self._settings, flag)
        limit = Limit(what, seconds, flag, code, seconds)
        self._limits.append(limit)
        return limit

    @contextlib.contextmanager
    def limit(self, what: str, flag: str, code: int = ExitCode.STALLED) -> Iterator[Limit]:
        """Sets a limit for what happens inside a `with` statement.

        An exception leaves it too: what the process then does has limits of its own.
        """
        limit = self.begin(what, flag, code)
        try:
            yield limit
        finally:
            self._limits.remove(limit)

    def waiting(self) -> str:
        """Returns the words that name the collectives which this rank has begun and not ended, if there are any."""
        collectives = self.pending.unfinished() if self.pending else []
        return f"; begun and not ended: {', '.join(map(str, collectives))}" if collectives else ""

    def _watch(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(TICK_SECONDS)
            now = time.monotonic()
            # More than two ticks: this process was stopped, and what it waits for perhaps as well.
            passed, before = min(now - before, 2 * TICK_SECONDS), now
            for limit in list(self._limits):
                limit.left -= passed
                if limit.left <= 0:
                    reporter = threading.Thread(
                        target=self._report, args=[limit], name="watchdog's report", daemon=True
                    )
                    reporter.start()
                    reporter.join(REPORT_SECONDS)
                    self._end(limit.code)
                    return

    def _report(self, limit: Limit) -> None:
        """Says what was late, and writes the stacks of all threads; first what needs no disk.

        It writes straight to standard error: the thread that hangs may hold a lock of `logging`.
        """
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        line = f"tftrain.run: rank {self._rank}: {limit.exceeded()}{self.waiting()}"
        print(line, file=sys.__stderr__, flush=True)
        stacks = Path(self._settings.output_dir) / "stacks" / f"rank_{self._rank}.txt"
        try:
            stacks.parent.mkdir(parents=True, exist_ok=True)
            with stacks.open("w") as file:
                print(line, file=file, flush=True)
                faulthandler.dump_traceback(file, all_threads=True)
            kept = folder.find(self._settings.output_dir)
        except (OSError, CheckpointError) as error:
            words = f"the stacks can't be written: {error}"
        else:
            words = f"the stacks are in {stacks}; the last checkpoint is {kept[-1] if kept else 'not written yet'}"
        print(f"tftrain.run: rank {self._rank}: {words}", file=sys.__stderr__, flush=True)
