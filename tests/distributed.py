"""Starts several ranks for a test, with a hard time limit and every rank's output in the failure.

As under `horovodrun --gloo`, environment variables give each rank its number, and a rendezvous server connects the
ranks. `rank_server` forks the ranks if a forked process behaves like a fresh one. `horovodrun` itself loads TensorFlow
twice before it starts a rank; only tests of that program use it.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from tests.rank_server import ROOT, ForkedRank, RankServer


def run_ranks(
    ranks: int,
    args: Sequence[str],
    *,
    seconds: float = 240,
    expected_code: int = 0,
    environ: Mapping[str, str] | None = None,
    fresh: bool = False,
    horovodrun: bool = False,
    hosts: int = 1,
) -> str:
    """Runs `python ARGS` on several ranks, or as one plain process if `ranks` is 1.

    Args:
        ranks: how many processes.
        args: what follows the interpreter, e.g. ["-m", "tftrain.run", "--max_steps=2"].
        seconds: after this time all ranks are killed and the test fails.
        expected_code: 0, or the exit code of the first rank that fails; horovodrun itself ends with 1 on any failure.
        environ: further environment variables.
        fresh: whether each rank needs an interpreter of its own, e.g. to import other modules.
        horovodrun: whether that program starts the ranks.
        hosts: how many hosts the ranks believe that they are on, as many on each.

    Returns:
        The output of all ranks, one after the other; of horovodrun, its own.

    Raises:
        AssertionError: the exit code is another one, or the time is up; the message holds the output.
    """
    given = settings(environ)
    command = [sys.executable, *args]
    if horovodrun:
        command = ["horovodrun", "-np", str(ranks), "--gloo", "--start-timeout", "120", *command]
        expected_code = int(expected_code != 0)
    with places(1 if horovodrun else ranks, hosts) as environs, _started(command, given, environs, fresh) as started:
        code = _first_code(started, seconds)
        output = started.output()
    assert code is not None, f"{' '.join(command)}\nwas killed after {seconds} s. Its output:\n{output}"
    assert code == expected_code, f"{' '.join(command)}\nended with {code}, expected {expected_code}:\n{output}"
    return output


@contextlib.contextmanager
def started_ranks(
    ranks: int, args: Sequence[str], *, environ: Mapping[str, str] | None = None, fresh: bool = False
) -> Iterator["Ranks"]:
    """Starts `python ARGS` on several ranks, for a test that acts on them; kills those that still run at the end.

    Args:
        ranks: how many processes.
        args: what follows the interpreter.
        environ: further environment variables.
        fresh: whether each rank needs an interpreter of its own.

    Yields:
        The ranks.
    """
    with places(ranks) as environs, _started([sys.executable, *args], settings(environ), environs, fresh) as started:
        yield started


@functools.cache
def rank_server() -> RankServer:
    """Starts the server that forks the ranks of this test process, on the first call."""
    return RankServer(settings(None))


class Ranks:
    """Processes that run.

    Attributes:
        processes: one a rank; each leads a process group of its own.
    """

    def __init__(self, processes: Sequence[subprocess.Popen | ForkedRank], outputs: Sequence[Path]):
        self.processes, self._outputs = processes, outputs

    def output(self, rank: int | None = None) -> str:
        """Returns what one rank, by default each in turn, has printed so far."""
        outputs = self._outputs if rank is None else [self._outputs[rank]]
        return "\n".join(path.read_text(errors="replace") for path in outputs)

    def wait_for(self, text: str, rank: int = 0, seconds: float = 180) -> None:
        """Waits until a rank has printed a text.

        Raises:
            AssertionError: the rank has ended, or time is up.
        """
        end = time.monotonic() + seconds
        while text not in self.output(rank):
            running = self.processes[rank].poll() is None
            assert running, f"rank {rank} ended before it printed {text!r}:\n{self.output()}"
            assert time.monotonic() < end, f"{text!r} was not printed in {seconds} s:\n{self.output()}"
            time.sleep(0.05)

    def codes(self, ranks: Sequence[int], seconds: float) -> list[int]:
        """Waits until these ranks have ended and returns their exit codes.

        Raises:
            AssertionError: time is up.
        """
        end = time.monotonic() + seconds
        while any(self.processes[rank].poll() is None for rank in ranks):
            assert time.monotonic() < end, f"ranks {list(ranks)} still ran after {seconds} s:\n{self.output()}"
            time.sleep(0.05)
        return [self.processes[rank].returncode for rank in ranks]


def settings(environ: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the environment of every rank, without its place."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(environ or {})}
    settings.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    # Ranks of tests compile for most of their time, in which Horovod's threads would take a third of each core.
    settings.setdefault("HOROVOD_CYCLE_TIME", "5")
    return settings


@contextlib.contextmanager
def places(ranks: int, hosts: int = 1) -> Iterator[list[dict[str, str]]]:
    """Starts a rendezvous server if there are several ranks, and yields each rank's place as environment variables."""
    if ranks == 1:
        yield [{}]
        return
    server = RendezvousServer(0)
    port = server.start()
    names = ["localhost", *(f"host{number}" for number in range(1, hosts))]
    assigned = get_host_assignments(parse_hosts(",".join(f"{name}:{ranks // hosts}" for name in names)), ranks)
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


@contextlib.contextmanager
def _started(command, settings, places, fresh) -> Iterator[Ranks]:
    """Starts a process for each place, and kills those that still run at the end."""
    with tempfile.TemporaryDirectory(prefix="ranks.") as folder:
        outputs = [Path(folder) / f"{rank}.txt" for rank in range(len(places))]
        for output in outputs:
            output.touch()
        environs = [{**settings, **place} for place in places]
        args = command[1:]
        if not fresh and command[0] == sys.executable and rank_server().can_fork(args, settings):
            processes = rank_server().fork([args] * len(places), environs, outputs)
        else:
            processes = [_fresh(command, *each) for each in zip(environs, outputs, strict=True)]
        try:
            yield Ranks(processes, outputs)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _fresh(command: Sequence[str], environ: Mapping[str, str], output: Path) -> subprocess.Popen:
    with output.open("ab") as file:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _first_code(ranks: Ranks, seconds: float) -> int | None:
    """Waits for all ranks; returns the exit code of the first that failed, or 0, or None if the time is up."""
    end, first = time.monotonic() + seconds, 0
    while any(process.poll() is None for process in ranks.processes) and time.monotonic() < end:
        if not first and (first := next((process.returncode for process in ranks.processes if process.returncode), 0)):
            # The others have time to end with messages of their own; a launcher would kill them.
            end = min(end, time.monotonic() + 15)
        time.sleep(0.05)
    codes = [process.poll() for process in ranks.processes]
    return first or next((code for code in codes if code != 0), 0)
