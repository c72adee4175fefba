"""Passes on the output of a rank in whole lines, so that the lines of several ranks do not mix.

If the launcher prints to a terminal, the rank gets a terminal of the same size, so that it draws its progress bar. A
bar is a line without an end, which is passed on after a moment without more output.
"""

import fcntl
import os
import select
import struct
import termios
import tty
from collections.abc import Callable, Sequence

# The rest of a line that is being written arrives within this time.
QUIET_SECONDS = 0.05
MAX_LINE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16


class Stream:
    """A pipe, or a terminal, for the output of a process; `reader` and `writer` are file descriptors of its ends."""

    def __init__(self, size: Sequence[int] | None):
        """Opens it; `size` are the rows and columns of a terminal, None for a pipe."""
        self.is_terminal = size is not None
        if size is None:
            self.reader, self.writer = os.pipe()
            return
        self.reader, self.writer = os.openpty()
        tty.setraw(self.writer)  # No line end is changed.
        fcntl.ioctl(self.writer, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def forward(stream: Stream, emit: Callable[[bytes], None]) -> None:
    """Passes on a stream until its end, one or more whole lines at a time, then closes it."""
    rest = b""
    while True:
        if rest and stream.is_terminal and not select.select([stream.reader], [], [], QUIET_SECONDS)[0]:
            emit(rest)
            rest = b""
        try:
            chunk = os.read(stream.reader, CHUNK_BYTES)
        except OSError:
            chunk = b""  # A terminal whose other end is closed.
        if not chunk:
            break
        rest += chunk
        if end := len(rest) if len(rest) > MAX_LINE_BYTES else rest.rfind(b"\n") + 1:
            emit(rest[:end])
            rest = rest[end:]
    if rest:
        emit(rest if stream.is_terminal else rest + b"\n")
    os.close(stream.reader)
