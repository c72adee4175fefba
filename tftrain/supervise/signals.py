"""Signals that stop a run: it finishes the step, saves, and ends.

Python runs signal handlers in the main thread between two bytecode instructions, and the main thread may be inside
TensorFlow's C++ for minutes, or for ever. So the number of each signal goes through a socket to a thread. The first
signal is a request: the next step shares it with all ranks. The second signal ends the process at once.
"""

import ctypes
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from tftrain.host.exit_codes import ExitCode

logger = logging.getLogger(__name__)

# What ends a session: batch systems send SIGTERM, SIGXCPU or SIGUSR2 when the allotted time ends, and SIGUSR1 before
# that if they are asked to; a terminal that closes sends SIGHUP.
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGXCPU)
FORCING = (signal.SIGTERM, signal.SIGINT)
HOOK = signal.SIGWINCH  # tells the other ranks that a hook asked for the end; nothing listens to the signal itself
# A launcher forwards a signal that the terminal or the batch system has already sent to every process.
SAME_SIGNAL_SECONDS = 1.0
PR_SET_PDEATHSIG = 1  # as in <sys/prctl.h>


class Signals:
    """Listens to signals inside a `with` statement, in the main thread; `received` is the first one's number, or 0."""

    def __init__(
        self,
        on_request: Callable[[str], None],
        end: Callable[[int], None] = os._exit,
        plan: str = "the run finishes this step, saves, and ends",
    ):
        """Prepares to listen.

        Args:
            on_request: called once, possibly from another thread, with the name of the first signal.
            end: called with an exit code at a second one.
            plan: what the first signal leads to, for the log.
        """
        self.received = 0
        self._on_request, self._end, self._plan = on_request, end, plan
        self._lock = threading.Lock()
        self._reader, self._writer = socket.socketpair()
        self._forced_at: float | None = None

    def __enter__(self) -> "Signals":
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        # A signal that the parent process made this one ignore, such as a background shell does, stays ignored.
        handled = [number for number in REQUESTS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in handled}
        threading.Thread(target=self._listen, name="signals", daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._writer.close()

    def stop_requested(self, number: int) -> bool:
        """Returns whether all ranks stop after this step; `number` is the largest `received` of all ranks."""
        if number:
            self._request(number, "a hook of another rank" if number == HOOK else "another rank received")
        return number > 0

    def stop(self, reason: str) -> None:
        """Makes all ranks stop after a step, as a signal does, but without a limit on the time to save."""
        self._request(HOOK, reason)

    def _request(self, number: int, receiver: str) -> None:
        """Begins to stop at the first request."""
        with self._lock:
            if self.received:
                return
            self.received = number
        name = signal.Signals(number).name
        logger.warning(f"{receiver}{'' if number == HOOK else f' {name}'}: {self._plan}")
        if number != HOOK:
            self._on_request(name)

    def _listen(self) -> None:
        with self._reader:
            while numbers := self._reader.recv(64):
                for number in numbers:
                    if number in self._handlers:
                        self._handle(number)

    def _handle(self, number: int) -> None:
        self._request(number, "received")
        now = time.monotonic()
        if number not in FORCING:
            return
        if self._forced_at is None:
            self._forced_at = now
        elif now - self._forced_at > SAME_SIGNAL_SECONDS:
            name = signal.Signals(number).name
            logger.warning(f"a second signal, {name}: this process ends at once and saves nothing")
            self._end(ExitCode.SIGNALLED + number)


def end_with(parent: int, number: int = signal.SIGTERM) -> Callable[[], None]:
    """Returns a function for a child of a process, after which the kernel sends it a signal when that has ended."""
    prctl = ctypes.CDLL(None).prctl

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(ExitCode.SIGNALLED + number)

    return in_child
