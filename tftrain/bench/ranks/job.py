"""One start of many ranks: the seconds until lines of the chief appear, and the memory of all ranks meanwhile.

The memory of a rank is its proportional set size, PSS: the kernel counts a page that n processes share as 1/n for each,
so the sum over all ranks is what they need together. (The resident set size counts such a page n times.)
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from tftrain.bench.training.run import RunError, reason
from tftrain.bench.worker import ROOT

# Reading the memory of many ranks takes a while: about this share of the time goes into it.
SAMPLING_SHARE = 0.1
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 5.0


class Memory(NamedTuple):
    """Memory of the ranks at one moment.

    Attributes:
        total, largest: PSS in bytes, of all ranks and of the largest one.
        threads: the most threads of a rank.
    """

    total: int
    largest: int
    threads: int


class Start(NamedTuple):
    """What was measured.

    Attributes:
        seconds: from the start of the command to each of the awaited lines.
        memory: the highest of each figure.
    """

    seconds: tuple[float, ...]
    memory: Memory


def measure(command: Sequence[str], environ: Mapping[str, str], awaited: Sequence[str], limit: float) -> Start:
    """Runs a command to its end.

    Args:
        command: starts ranks; the last process in each line of descent is a rank.
        environ: all its variables.
        awaited: texts of lines that it prints, in this order.
        limit: seconds after which it is killed.

    Raises:
        RunError: it failed, took longer, or did not print a line.
    """
    begin, seconds, lines = time.monotonic(), [], []
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    killer = threading.Timer(limit, process.terminate)
    killer.start()
    sampler = _Sampler(process.pid)
    try:
        for line in process.stdout:
            lines.append(line.decode(errors="replace").rstrip())
            if len(seconds) < len(awaited) and awaited[len(seconds)] in lines[-1]:
                seconds.append(time.monotonic() - begin)
        code = process.wait()
    finally:
        killer.cancel()
        memory = sampler.end()
        process.terminate()
    if code:
        raise RunError(reason(lines, code))
    if len(seconds) < len(awaited):
        raise RunError(f"it did not print {awaited[len(seconds)]!r}")
    return Start(tuple(seconds), memory)


def memory_of(pids: Iterable[int]) -> Memory:
    """Returns the memory of processes, without those that have ended."""
    sizes, threads = [0], [0]
    for pid in pids:
        folder = Path("/proc", str(pid))
        with contextlib.suppress(OSError):
            threads.append(len(list((folder / "task").iterdir())))
            lines = (folder / "smaps_rollup").read_text().splitlines()
            sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")]
    return Memory(sum(sizes), max(sizes), max(threads))


class _Sampler:
    """A thread that measures the leaves of a tree of processes."""

    def __init__(self, root: int):
        self._root, self._ended, self._highest = psutil.Process(root), threading.Event(), Memory(0, 0, 0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> Memory:
        self._ended.set()
        self._thread.join()
        return self._highest

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._ended.wait(pause):
            begin = time.monotonic()
            with contextlib.suppress(psutil.Error):
                below = self._root.children(recursive=True)
                parents = {process.ppid() for process in below}
                found = memory_of(process.pid for process in below if process.pid not in parents)
                self._highest = Memory(*map(max, self._highest, found))
            pause = min(max(SHORTEST_PAUSE, (time.monotonic() - begin) / SAMPLING_SHARE), LONGEST_PAUSE)
