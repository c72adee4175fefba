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
    binaries = Path(sys.executable).parent
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(environ or {})}
    settings.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    command = [sys.executable, *args]
    if horovodrun:
        command = ["horovodrun", "-np", str(ranks), "--gloo", "--start-timeout", "120", *command]
        expected_code = int(expected_code != 0)
    with _places(1 if horovodrun else ranks) as places:
        code, output = _run(command, [{**settings, **place} for place in places], seconds)
    assert code is not None, f"{' '.join(command)}\nwas killed after {seconds} s. Its output:\n{output}"
    assert code == expected_code, f"{' '.join(command)}\nended with {code}, expected {expected_code}:\n{output}"
    return output


@contextlib.contextmanager
def _places(ranks: int) -> Iterator[list[dict[str, str]]]:
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


def _run(command, environments, seconds) -> tuple[int | None, str]:
    """Returns the first exit code that is not 0, or 0, or None for too late; and all that was printed."""
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile(mode="w+")) for _ in environments]
        code = _wait(command, environments, outputs, seconds)
        for output in outputs:
            output.seek(0)
        return code, "\n".join(output.read() for output in outputs)


def _wait(command, environments, outputs, seconds) -> int | None:
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for environ, output in zip(environments, outputs, strict=True)
    ]
    end, failed_at, first = time.monotonic() + seconds, None, 0
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        first = first or next((process.returncode for process in processes if process.returncode), 0)
        if first and failed_at is None:
            # The others notice, or have something to say of their own; a launcher would end them.
            failed_at, end = time.monotonic(), min(end, time.monotonic() + 15)
        time.sleep(0.05)
    late = failed_at is None and any(process.poll() is None for process in processes)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    codes = [first, *(process.returncode for process in processes)]
    return None if late else next((code for code in codes if code), 0)
