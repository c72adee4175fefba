"""Starts several ranks for a test: horovodrun with a hard time limit, every rank's output in the failure."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_ranks(ranks: int, args: Sequence[str], *, seconds: float = 240, expected_code: int = 0, environ=None) -> str:
    """Runs `python ARGS` on so many ranks, or as one plain process if `ranks` is 1.

    Args:
        ranks: how many processes.
        args: what follows the interpreter, e.g. ["-m", "tftrain.run", "--max_steps=2"].
        seconds: after this the whole process group is killed and the test fails.
        expected_code: 0, or the exit code that one process must end with; horovodrun itself ends with 1 on any failure.
        environ: further environment variables.

    Returns:
        The output of all ranks, each line marked with its rank where horovodrun does so.

    Raises:
        AssertionError: another exit code, or no end in time; the message holds the output.
    """
    binaries = Path(sys.executable).parent
    launcher = (
        [str(binaries / "horovodrun"), "-np", str(ranks), "--gloo", "--start-timeout", "120"] if ranks > 1 else []
    )
    command = [*launcher, sys.executable, *args]
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(environ or {})}
    settings.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{' '.join(command)}\nwas killed after {seconds} s. Its output:\n{output}") from None
    expected = expected_code if ranks == 1 or expected_code == 0 else 1
    assert process.returncode == expected, (
        f"{' '.join(command)}\nended with {process.returncode}, expected {expected}:\n{output}"
    )
    return output
