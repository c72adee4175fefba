"""Starts several ranks for a test, with a hard time limit and every rank's output in the failure.

As under `horovodrun --gloo`, environment variables give each rank its number, and a rendezvous server connects the
ranks. The fork server forks the ranks if a forked process behaves like a fresh one.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from tests.kit.fork_server import ROOT, ForkedRank, ForkServer
from tests.kit.waiting import POLL_SECONDS, wait_until


def run_ranks(
    ranks: int,
    args: Sequence[str],
    *,
    seconds: float = 240,
    expected_code: int = 0,
    environ: Mapping[str, str] | None = None,
    fresh: bool = False,
) -> str:
    """Runs `python ARGS` on several ranks, or as one plain process if `ranks` is 1; returns the output of all in turn.

    `expected_code` is 0, or the exit code of the first rank that fails. `environ` has further variables; with `fresh`
    each rank has an interpreter of its own, e.g. to import other modules.

    Raises:
        AssertionError: the exit code is another one, or the time is up; the message holds the output.
    """
    command = [sys.executable, *args]
    with started_ranks(ranks, args, environ=environ, fresh=fresh) as started:
        # After a failure the others have time to end with messages of their own; a launcher would kill them.
        ending = started.finish(seconds, after=15, counts=lambda code: code != 0)
        output = started.output()
    code = ending.first or next((code for code in ending.codes if code != 0), 0)
    assert code is not None, f"{' '.join(command)}\nwas killed after {seconds} s. Its output:\n{output}"
    assert code == expected_code, f"{' '.join(command)}\nended with {code}, expected {expected_code}:\n{output}"
    return output


@contextlib.contextmanager
def started_ranks(
    ranks: int,
    args: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    fresh: bool = False,
    outputs: Sequence[Path] | None = None,
    one_group: bool = False,
) -> Iterator["Ranks"]:
    """Starts `python ARGS` on several ranks, for a test that acts on them; kills those that still run at the end.

    `environ`, `fresh`: as of `run_ranks`. `outputs`: files for the output of each rank; by default temporary ones.
    `one_group`: whether all forked ranks are in one process group; otherwise each leads a group of its own.
    """
    given = settings(environ)
    with rank_variables(ranks) as variables, tempfile.TemporaryDirectory(prefix="ranks.") as folder:
        outputs = outputs or [Path(folder) / f"{rank}.txt" for rank in range(ranks)]
        for output in outputs:
            output.touch()
        environs = [{**given, **own} for own in variables]
        if not fresh and fork_server().can_fork(args, given):
            processes = fork_server().fork(args, environs, outputs, one_group)
        else:
            command = [sys.executable, *args]
            processes = [_fresh(command, *pair) for pair in zip(environs, outputs, strict=True)]
        started = Ranks(processes, outputs)
        try:
            yield started
        finally:
            started.kill()


@functools.cache
def fork_server() -> ForkServer:
    """Starts the server that forks the ranks of this test process, on the first call."""
    return ForkServer(settings(None))


class Ending(NamedTuple):
    """How ranks have ended."""

    codes: list[int | None]  # by rank; None for one that was killed because the time was up
    first: int | None  # the code of the first rank whose end counted; None if there was none
    seconds: float  # from that end to the last


class Ranks:
    """Processes that run; `processes` has one a rank."""

    def __init__(self, processes: Sequence[subprocess.Popen | ForkedRank], outputs: Sequence[Path]):
        self.processes, self.outputs = processes, outputs

    def output(self, rank: int | None = None) -> str:
        """Returns what one rank, by default each in turn, has printed so far."""
        outputs = self.outputs if rank is None else [self.outputs[rank]]
        return "\n".join(path.read_text(errors="replace") for path in outputs)

    def wait_for(self, text: str, rank: int = 0, seconds: float = 180) -> None:
        """Waits until a rank has printed a text; raises an AssertionError if it has ended, or time is up."""
        process = self.processes[rank]
        message = lambda: f"rank {rank} did not print {text!r}:\n{self.output()}"  # noqa: E731
        wait_until(lambda: text in self.output(rank), seconds, message, lambda: process.poll() is None)

    def codes(self, ranks: Sequence[int], seconds: float) -> list[int]:
        """Waits until these ranks have ended and returns their exit codes; raises an AssertionError if time is up."""
        processes = [self.processes[rank] for rank in ranks]
        have_ended = lambda: None not in [process.poll() for process in processes]  # noqa: E731
        wait_until(have_ended, seconds, lambda: f"ranks {list(ranks)} still ran:\n{self.output()}")
        return [process.returncode for process in processes]

    def finish(self, seconds: float, after: float, counts: Callable[[int], bool] = lambda code: True) -> Ending:
        """Waits until every rank has ended, at most `seconds`, and at most `after` from the first end that counts."""
        end, began, first, codes = time.monotonic() + seconds, None, None, []
        while None in (codes := [process.poll() for process in self.processes]) and time.monotonic() < end:
            if began is None and (ended := [code for code in codes if code is not None and counts(code)]):
                first, began = ended[0], time.monotonic()
                end = min(end, began + after)
            time.sleep(POLL_SECONDS)
        return Ending(codes, first, time.monotonic() - (began or time.monotonic()))

    def kill(self) -> None:
        """Kills the ranks that still run, and what they have started."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(os.getpgid(process.pid), signal.SIGKILL)
            process.wait()


def settings(environ: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the environment of every rank, without its number."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(environ or {})}
    settings.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    # Ranks of tests compile for most of their time, in which Horovod's threads would take a third of each core.
    settings.setdefault("HOROVOD_CYCLE_TIME", "5")
    return settings


@contextlib.contextmanager
def rank_variables(ranks: int) -> Iterator[list[dict[str, str]]]:
    """Starts a rendezvous server if there are several ranks, and yields the variables that number each rank."""
    if ranks == 1:
        yield [{}]
        return
    server = RendezvousServer(0)
    port = server.start()
    assigned = get_host_assignments(parse_hosts(f"localhost:{ranks}"), ranks)
    server.init(assigned)
    try:
        yield [
            {
                "HOROVOD_HOSTNAME": slot.hostname,
                "HOROVOD_RANK": str(slot.rank),
                "HOROVOD_SIZE": str(slot.size),
                "HOROVOD_LOCAL_RANK": str(slot.local_rank),
                "HOROVOD_LOCAL_SIZE": str(slot.local_size),
                "HOROVOD_CROSS_RANK": str(slot.cross_rank),
                "HOROVOD_CROSS_SIZE": str(slot.cross_size),
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname("localhost"),
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_GLOO_IFACE": "lo",
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
            }
            for slot in assigned
        ]
    finally:
        server.stop()


def _fresh(command: Sequence[str], environ: Mapping[str, str], output: Path) -> subprocess.Popen:
    with output.open("ab") as file:
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=ROOT, env=environ, start_new_session=True, **streams)
