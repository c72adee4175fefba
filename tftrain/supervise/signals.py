"""Signals that ask a run to stop: it finishes the step, saves, and ends.

Python's own handlers run in the main thread between two of its instructions, and the main thread may stand in
TensorFlow's C++ for minutes, or for ever. So the number of a signal goes through a socket to a thread. The first is a
request, on which all ranks agree in the next step, whichever of them got it; the second ends the process at once.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import numpy as np

from tftrain.exit_codes import ExitCode

logger = logging.getLogger(__name__)

# SIGUSR1 is what Slurm's --signal sends by custom; what comes at the end of the allotted time is SIGTERM.
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
INSISTING = (signal.SIGTERM, signal.SIGINT)
# A launcher hands on what the terminal, or a batch system, has sent to every process already.
SAME_SIGNAL_SECONDS = 1.0


class Signals:
    """Listens to signals inside a `with` statement; in the main thread.

    Attributes:
        received: the number of the first signal, 0 before.
    """

    def __init__(self, on_request: Callable[[str], None], end: Callable[[int], None] = os._exit):
        """Prepares to listen.

        Args:
            on_request: called once, perhaps by another thread, with the name of the signal that asks for the end.
            end: ends the process with a code.
        """
        self.received = 0
        self._on_request, self._end = on_request, end
        self._lock = threading.Lock()
        self._reader, self._writer = socket.socketpair()
        self._insisted_at: float | None = None

    def __enter__(self) -> "Signals":
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        # What whoever started this process has it ignore, such as a shell in the background, stays ignored.
        heard = [number for number in REQUESTS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in heard}
        threading.Thread(target=self._listen, name="signals", daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._writer.close()

    def requests(self) -> np.ndarray:
        """Returns what this rank wants all to know, fp32 [1], for the next step."""
        return np.array([self.received], np.float32)

    def agreed(self, requests: np.ndarray) -> bool:
        """Whether all ranks stop after this step, by the largest of their requests, fp32 [1]."""
        number = int(requests[0])
        if number:
            self._request(number, "on another rank")
        return number > 0

    def _request(self, number: int, where: str) -> None:
        """Begins to stop, the first time."""
        with self._lock:
            if self.received:
                return
            self.received = number
        name = signal.Signals(number).name
        logger.warning(f"{name} {where}: the run finishes this step, saves, and ends")
        self._on_request(name)

    def _listen(self) -> None:
        with self._reader:
            while numbers := self._reader.recv(64):
                for number in numbers:
                    if number in self._handlers:
                        self._take(number)

    def _take(self, number: int) -> None:
        self._request(number, "here")
        now = time.monotonic()
        if number not in INSISTING:
            return
        if self._insisted_at is None:
            self._insisted_at = now
        elif now - self._insisted_at > SAME_SIGNAL_SECONDS:
            name = signal.Signals(number).name
            logger.warning(f"a second signal, {name}: this process ends at once and saves nothing")
            self._end(ExitCode.SIGNALLED + number)
