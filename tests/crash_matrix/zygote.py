"""A process that has loaded TensorFlow and tftrain once and forks every rank: a start without the seconds of imports.

That is sound because nothing but imports has happened before a fork: no thread was started (it refuses to fork if one
was), so no lock is held by a thread that the child does not have; jemalloc, which TensorFlow's wheel may bring along,
stops its own thread for a fork. TensorFlow starts its runtime and Horovod connects
in the child. A rank then does what `python -m tftrain.run` does, with its place in its environment.

    {"args": [...], "ranks": [{"log": path, "environ": {...}, "fault": {...} or null}, ...]}     in, a line
    {"pids": [...]}, and {"pid": number, "code": number} for each that has ended                  out, lines
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.distributed import ROOT, places

# What a run waits for at most, where a product limit would be longer than a test.
LIMITS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_USE_LEGACY_KERAS": "1"}
SAFE = {"jemalloc_bg_thd"}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Zygote:
    """The process, and what it says."""

    def __init__(self):
        """Starts it; it is ready some seconds later, and requests wait until then."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash_matrix.zygote"],
            cwd=ROOT,
            env={**os.environ, **LIMITS, **QUIET, **ONE_THREAD, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._codes: dict[int, int] = {}
        self._pids: list[int] | None = None
        self._received = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(self, *_) -> None:
        self._process.stdin.close()
        self._process.wait()

    def fork(self, args: Sequence[str], ranks: Sequence[dict]) -> list[int]:
        """Starts a process for each rank and returns their ids."""
        self._pids = None
        self._process.stdin.write(json.dumps({"args": list(args), "ranks": list(ranks)}).encode() + b"\n")
        self._process.stdin.flush()
        while self._pids is None:
            self._listen(1)
        return self._pids

    def code(self, pid: int) -> int | None:
        """Returns how a process has ended, negative for a signal; None if it has not."""
        self._listen(0)
        return self._codes.get(pid)

    def _listen(self, seconds: float) -> None:
        while self._selector.select(seconds):
            block = os.read(self._process.stdout.fileno(), 1 << 16)
            if not block:
                raise RuntimeError("the process that forks the ranks has ended; its reason is above")
            *lines, self._received = (self._received + block).split(b"\n")
            for line in map(json.loads, lines):
                if "pids" in line:
                    self._pids = line["pids"]
                else:
                    self._codes[line["pid"]] = line["code"]
            seconds = 0


@dataclass
class Start:
    """Ranks that are running or have run.

    Attributes:
        pids: by rank.
        codes: by rank, None for one that had to be killed because the time was up.
        seconds: from the first end of a rank to the last, or to that kill.
        logs: each rank's output.
    """

    pids: list[int]
    logs: list[Path]
    codes: list[int | None] = field(default_factory=list)
    seconds: float = 0

    @property
    def output(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self.logs)


def start(zygote: Zygote, args: Sequence[str], faults: Sequence[dict | None], folder: Path, seconds=300, after=60):
    """Runs a training until every rank has ended.

    Args:
        zygote: forks the ranks.
        args: what follows `python -m tftrain.run`.
        faults: for each rank what befalls it, see `faults.install`.
        folder: for the logs; the next number is taken for their names.
        seconds: after these all are killed.
        after: as well, after the first rank has ended.

    Returns:
        The Start.
    """
    number = len(list(folder.glob("*_rank_0.log")))
    with places(len(faults)) as environs:
        logs = [folder / f"{number:03d}_rank_{rank}.log" for rank in range(len(faults))]
        ranks = [
            {"log": str(log), "environ": environ, "fault": fault}
            for log, environ, fault in zip(logs, environs, faults, strict=True)
        ]
        started = Start(zygote.fork(args, ranks), logs)
        return wait(zygote, started, seconds, after)


def wait(zygote: Zygote, started: Start, seconds: float, after: float) -> Start:
    """Waits until every rank has ended, and kills those that have not in time."""
    end, first, codes = time.monotonic() + seconds, None, []
    try:
        while None in (codes := [zygote.code(pid) for pid in started.pids]) and time.monotonic() < end:
            if first is None and codes != [None] * len(codes):
                first = time.monotonic()
                end = min(end, first + after)
            time.sleep(0.02)
    finally:
        for pid in started.pids:
            if zygote.code(pid) is None:
                os.kill(pid, signal.SIGKILL)
                while zygote.code(pid) is None:
                    time.sleep(0.02)
    started.codes, started.seconds = codes, time.monotonic() - (first or time.monotonic())
    return started


def _serve() -> None:
    """Forks ranks until standard input ends."""
    from tests.crash_matrix import faults

    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(reader, selectors.EVENT_READ)
    pending = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if reader in ready:
            os.read(reader, 1 << 12)
        _report()
        if 0 not in ready:
            continue
        block = os.read(0, 1 << 16)
        if not block:
            return
        *lines, pending = (pending + block).split(b"\n")
        for line in map(json.loads, lines):
            _fork(line, faults)


def _fork(request: dict, faults) -> None:
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert len([name for name in threads if name not in SAFE]) == 1, f"an import has started a thread: {threads}"
    pids: list[int] = []
    for rank in request["ranks"]:
        pid = os.fork()
        if pid == 0:
            # All in one group, which a fault may kill as a whole.
            os.setpgid(0, pids[0] if pids else 0)
            _become(rank, request["args"], faults)
        pids.append(pid)
        os.setpgid(pid, pids[0])
    _say({"pids": pids})


def _become(rank: dict, args: list[str], faults) -> None:
    """Is a rank from now on."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (os.open(rank["log"], os.O_CREAT | os.O_WRONLY), 1)):
        os.dup2(source, target)
    os.dup2(1, 2)
    os.environ.update(rank["environ"])
    faults.install(rank["fault"])
    from tftrain import run

    sys.exit(run.main(["tftrain.run", *args]))


def _report() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(message: dict) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    # All that a rank will import, and nothing else.
    import horovod.tensorflow  # noqa: F401
    import tensorflow  # noqa: F401

    _serve()
