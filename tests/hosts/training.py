"""A training of four ranks on two hosts, ZeRO-1 and two tensor parallel ranks, and how it ended."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.crash_matrix.matrix import TRAINING
from tests.crash_matrix.training import QUIET
from tests.hosts.network import ROOT, Host
from tests.kit.waiting import wait_until

RANKS, PLACES = 4, "node1:2,node2:2"
FLAGS = (*TRAINING, "--tensor_parallel_size=2", "--split_opt_state")
# A rank's line of `--verbose`: "rank 3 on node2 ended with 80", or "is lost".
ENDED = re.compile(r"^rank (\d+) on \S+ (?:ended with (\d+)|is lost)$", re.MULTILINE)


@dataclass
class Outcome:
    """How a job ended."""

    code: int | None  # the launcher's exit code; None if it had to be killed
    seconds: float  # from the fault, or the start, to the end of the launcher
    first: float  # the same until the first rank had ended; 0 if none ran
    last: float  # the same until the last rank had ended
    codes: dict[int, int | None]  # the exit code of each rank, as the launcher learned it
    output: str  # what the launcher printed
    left: list[str]  # processes of ranks that were left on the hosts

    @property
    def line(self) -> str:
        """The last line of the output."""
        return self.output.rstrip().rpartition("\n")[2]


class Job:
    """A launcher on one host, and its ranks on all."""

    def __init__(self, hosts: Mapping[str, Host], at: str, command: Sequence[str], log: Path):
        """Starts the launcher; `at` is its host."""
        self.hosts, self._log, self._begin = hosts, log, time.monotonic()
        environ = {**QUIET, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "HOROVOD_CYCLE_TIME": "5"}
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                hosts[at].command(*command, environ=environ),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ranks(self, host: str | None = None) -> list[psutil.Process]:
        """Returns the ranks that run on one host, by default on all."""
        hosts = self.hosts.values() if host is None else [self.hosts[host]]
        return [process for host in hosts for process in host.processes("-m", "tftrain.run")]

    def wait_for(self, text: str, seconds: float) -> None:
        """Waits until the launcher has printed a text."""
        self.wait_until(lambda: text in self.output, seconds)

    def wait_until(self, is_true: Callable[[], bool], seconds: float) -> None:
        """Waits until a condition holds while the launcher runs."""
        wait_until(is_true, seconds, lambda: self.output, lambda: self.is_running)

    def fault(self, act: Callable[[], None]) -> None:
        """Does something to the job and counts the seconds from now on."""
        act()
        self._begin = time.monotonic()

    def outcome(self, seconds: float) -> Outcome:
        """Waits for the end of all ranks and of the launcher, at most so long, and kills what is left."""
        end, first, last, most = time.monotonic() + seconds, 0.0, 0.0, 0
        while time.monotonic() < end:
            ended, ranks = not self.is_running, len(self.ranks())
            now, most = time.monotonic() - self._begin, max(most, ranks)
            if ranks < most:
                first = first or now
                last = last if last and not ranks else now
            if ended and not ranks:
                break
            time.sleep(0.1)
        took, code = time.monotonic() - self._begin, self._process.poll()
        left = [f"{process.pid} {' '.join(process.cmdline())}" for process in self.ranks()]
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*self.ranks(), *psutil.Process(self._process.pid).children(recursive=True)]:
                process.kill()
        self._process.wait()
        codes = {int(rank): int(number) if number else None for rank, number in ENDED.findall(self.output)}
        return Outcome(code, took, first, last, codes, self.output, left)


def launch(*flags: str, places: str = PLACES) -> list[str]:
    """Returns the command of `tftrain.launch` on hosts."""
    return [sys.executable, "-m", "tftrain.launch", "-H", places, "--verbose", *flags]


def horovodrun(*flags: str, places: str = PLACES) -> list[str]:
    """Returns the command of `horovodrun` on hosts, as README gives it."""
    return ["horovodrun", "-np", str(RANKS), "-H", places, sys.executable, "-m", "tftrain.run", *flags]
