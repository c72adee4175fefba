"""Waits, with a time limit, for what other processes do."""

import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.02


def wait_until(
    is_true: Callable[[], object],
    seconds: float = 60,
    describe: Callable[[], str] = lambda: "",
    is_running: Callable[[], bool] = lambda: True,
) -> None:
    """Waits until a condition holds, which a process that `is_running` is to bring about.

    `describe` makes the message of a failure, such as the output so far.

    Raises:
        AssertionError: the process has ended without it, or time is up.
    """
    end = time.monotonic() + seconds
    while not is_true():
        # It may have come about just before the end.
        assert is_running() or is_true(), f"the process ended first: {describe()}"
        assert time.monotonic() < end, f"not within {seconds} s: {describe()}"
        time.sleep(POLL_SECONDS)


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and is not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pid: int, seconds: float = 20) -> None:
    """Waits until a process has ended."""
    wait_until(lambda: not is_alive(pid), seconds, lambda: f"process {pid} still runs")
