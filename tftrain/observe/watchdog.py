"""The watchdog: a thread that ends the process when something takes longer than its limit.

A rank whose peer is gone may wait for ever where no exception reaches it: in Horovod, in TensorFlow's C++, or in a
system call. So a thread counts the seconds. When a limit is exceeded, the thread reports what was late and the stack of
each thread, and ends the process without asking the other ranks. It counts its own ticks instead of the clock's
seconds: a process that was stopped and continued does not exceed its limits by that.
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
from tftrain.config.run import LimitsConfig
from tftrain.host.exit_codes import ExitCode
from tftrain.observe.ledger import Ledger
from tftrain.parallel.pending_collectives import PendingCollectives

TICK_SECONDS = 0.25
# The report itself may hang: the pipe of stderr may be full, or the disk of the output folder gone.
REPORT_SECONDS = 10
END_SECONDS, FORCED_SECONDS = 25, 2  # more than trackers take; at a second signal, which ends the process at once


@dataclass(eq=False)
class Limit:
    """Something that must end in time."""

    what: str  # a noun for it, used in the report
    seconds: float  # the longest time that it may take
    flag: str  # sets the seconds
    code: int  # the exit code if it takes longer
    left: float  # the seconds that remain

    def restart(self) -> None:
        """Starts to count again, because there was progress."""
        self.left = self.seconds


class Watchdog:
    """The limits of one process."""

    def __init__(
        self, rank: int, settings: LimitsConfig, output_dir: str, end: Callable[[int], None] = os._exit, host: str = ""
    ):
        """Starts the thread, which ends the process by calling `end` with a code.

        The thread writes its report to OUTPUT_DIR/stacks/rank_N.txt. The report names the host, "" if all ranks share
        one.
        """
        self.pending: PendingCollectives | None = None  # The report names the unfinished ones; None before the start.
        self.ledger = Ledger()
        self.stage: int | None = None  # This rank's in the pipeline, for the report; None without stages.
        self.endings: list[Callable[[int], None]] = []  # They are told the exit code of the process before it ends.
        self._rank, self._settings, self._output_dir, self._end = rank, settings, output_dir, end
        self._program = f"tftrain.run: rank {rank}{host and f' on {host}'}"
        self._limits: list[Limit] = []
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, what: str, flag: str, code: int = ExitCode.STALLED) -> Limit:
        """Sets a limit that is never lifted, from any thread; see `Limit`."""
        seconds = getattr(self._settings, flag)
        limit = Limit(what, seconds, flag, code, seconds)
        self._limits.append(limit)
        return limit

    @contextlib.contextmanager
    def limit(self, what: str, flag: str, code: int = ExitCode.STALLED, kind: str = "") -> Iterator[Limit]:
        """Sets a limit for the body of a `with` statement, whose seconds the `ledger` counts as `kind`, if given."""
        limit = self.begin(what, flag, code)
        try:
            with self.ledger.spend(kind) if kind else contextlib.nullcontext():
                yield limit
        finally:
            self._limits.remove(limit)

    def tell_end(self, code: int, seconds: float = END_SECONDS) -> None:
        """Tells everybody in `endings` the exit code, from any thread; each at most so long."""
        for ending in self.endings:
            told = threading.Thread(target=ending, args=[code], name="ending", daemon=True)
            told.start()
            told.join(seconds)

    def waiting(self) -> str:
        """Returns a clause that names the collectives that this rank has begun and not ended; "" if there are none."""
        collectives = self.pending.unfinished() if self.pending else []
        stage = "" if self.stage is None else f" on pipeline stage {self.stage}"
        return f"; begun and not ended{stage}: {', '.join(map(str, collectives))}" if collectives else ""

    def _watch(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(TICK_SECONDS)
            now = time.monotonic()
            # More than two ticks mean that this process was stopped, and perhaps its peers as well.
            elapsed, before = min(now - before, 2 * TICK_SECONDS), now
            for limit in list(self._limits):
                limit.left -= elapsed
                if limit.left <= 0:
                    name = "watchdog's report"
                    reporter = threading.Thread(target=self._report, args=[limit], name=name, daemon=True)
                    reporter.start()
                    reporter.join(REPORT_SECONDS)
                    self.tell_end(limit.code)
                    self._end(limit.code)
                    return

    def _report(self, limit: Limit) -> None:
        """Reports what was late, and the stacks of all threads: first on stderr, then in a file.

        It writes straight to stderr, because a hung thread may hold a lock of `logging`.
        """
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        late = f"{limit.what} took longer than --{limit.flag}={limit.seconds:g} seconds"
        line = f"{self._program}: {late}{self.waiting()}"
        print(line, file=sys.__stderr__, flush=True)
        stacks = Path(self._output_dir) / "stacks" / f"rank_{self._rank}.txt"
        try:
            stacks.parent.mkdir(parents=True, exist_ok=True)
            with stacks.open("w") as file:
                print(line, file=file, flush=True)
                faulthandler.dump_traceback(file, all_threads=True)
            checkpoints = folder.find(self._output_dir)
        except (OSError, CheckpointError) as error:
            words = f"the stacks can't be written: {error}"
        else:
            newest = checkpoints[-1] if checkpoints else "not written yet"
            words = f"the stacks are in {stacks}; the last checkpoint is {newest}"
        print(f"{self._program}: {words}", file=sys.__stderr__, flush=True)
