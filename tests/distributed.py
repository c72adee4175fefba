"""Starts several ranks for a test, with a hard time limit and every rank's output in the failure.

As `horovodrun --gloo` does: a rendezvous server, and the ranks with their places in the environment. The program itself
loads TensorFlow twice before it starts a rank; the tests that need it say so.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

ROOT = Path(__file__).resolve().parents[1]


def run_ranks(
    ranks: int,
    args: Sequence[str],
    *,
    seconds: float = 240,
    expected_code: int = 0,
    environ=None,
    horovodrun: bool = False,
) -> str:
    """Runs `python ARGS` on so many ranks, or as one plain process if `ranks` is 1.

    Args:
        ranks: how many processes.
        args: what follows the interpreter, e.g. ["-m", "tftrain.run", "--max_steps=2"].
        seconds: after this all are killed and the test fails.
        expected_code: 0, or the exit code of the first rank that fails; horovodrun itself ends with 1 on any failure.
        environ: further environment variables.
        horovodrun: whether to start them by that program.

    Returns:
        The output of all ranks, one after the other; of horovodrun, its own.

    Raises:
        AssertionError: another exit code, or no end in time; the message holds the output.
    """
    settings = _settings(environ)
    command = [sys.executable, *args]
    if horovodrun:
        command = ["horovodrun", "-np", str(ranks), "--gloo", "--start-timeout", "120", *command]
        expected_code = int(expected_code != 0)
    with places(1 if horovodrun else ranks) as environs, _started(command, settings, environs) as started:
        code = _first_code(started, seconds)
        output = started.output()
    assert code is not None, f"{' '.join(command)}\nwas killed after {seconds} s. Its output:\n{output}"
    assert code == expected_code, f"{' '.join(command)}\nended with {code}, expected {expected_code}:\n{output}"
    return output


@contextlib.contextmanager
def started_ranks(ranks: int, args: Sequence[str], *, environ=None) -> Iterator["Ranks"]:
    """Starts `python ARGS` on so many ranks, for a test that does something to them; kills what is left at the end.

    Args:
        ranks: how many processes.
        args: what follows the interpreter.
        environ: further environment variables.

    Yields:
        The ranks.
    """
    with places(ranks) as environs, _started([sys.executable, *args], _settings(environ), environs) as started:
        yield started


class Ranks:
    """Processes that run.

    Attributes:
        processes: one a rank; each leads a process group of its own.
    """

    def __init__(self, processes: list[subprocess.Popen], outputs: list[IO[str]]):
        self.processes, self._outputs = processes, outputs

    def output(self, rank: int | None = None) -> str:
        """Returns all that one rank, by default each in turn, has printed so far."""
        texts = []
        for file in self._outputs if rank is None else [self._outputs[rank]]:
            file.seek(0)
            texts.append(file.read())
        return "\n".join(texts)

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


def _settings(environ) -> dict[str, str]:
    """Returns the environment of every rank."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(environ or {})}
    settings.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    return settings


@contextlib.contextmanager
def places(ranks: int) -> Iterator[list[dict[str, str]]]:
    """Starts a rendezvous server where there are several, and yields what each rank's environment says of its place."""
    if ranks == 1:
        yield [{}]
        return
    server = RendezvousServer(0)
    port = server.start()
    assigned = get_host_assignments(parse_hosts(f"localhost:{ranks}"), ranks)
    server.init(assigned)
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
    server.stop()


@contextlib.contextmanager
def _started(command, settings, places) -> Iterator[Ranks]:
    """Starts a process for each place, and kills those that are left at the end."""
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile(mode="w+")) for _ in places]
        processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**settings, **place},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for place, output in zip(places, outputs, strict=True)
        ]
        try:
            yield Ranks(processes, outputs)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _first_code(ranks: Ranks, seconds: float) -> int | None:
    """Waits for all, and returns the exit code of the first that failed, or 0, or None for too late."""
    end, first = time.monotonic() + seconds, 0
    while any(process.poll() is None for process in ranks.processes) and time.monotonic() < end:
        if not first and (first := next((process.returncode for process in ranks.processes if process.returncode), 0)):
            # The others notice, or have something to say of their own; a launcher would end them.
            end = min(end, time.monotonic() + 15)
        time.sleep(0.05)
    codes = [process.poll() for process in ranks.processes]
    return first or next((code for code in codes if code != 0), 0)
