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
    """A pipe, or a terminal, for the output of a process.

    Attributes:
        reader, writer: file descriptors of both ends.
        is_terminal: which of the two it is.
    """

    def __init__(self, size: Sequence[int] | None):
        """Opens it; `size` are the rows and columns of a terminal, None for a pipe."""
        self.is_terminal = size is not None
        if size is None:
            self.reader, self.writer = os.pipe()
            return
        self.reader, self.writer = os.openpty()
        tty.setraw(self.writer)  # No line end is changed.
        fcntl.ioctl(self.writer, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


class Lines:
    """Reads a stream and passes on whole lines."""

    def __init__(self, stream: Stream, emit: Callable[[bytes], None]):
        """Prepares to read the stream; `emit` takes one or more whole lines."""
        self._stream, self._emit = stream, emit

    def forward(self) -> None:
        """Passes on everything until the end of the stream, then closes it."""
        rest = b""
        while True:
            if rest and self._stream.is_terminal and not select.select([self._stream.reader], [], [], QUIET_SECONDS)[0]:
                self._emit(rest)
                rest = b""
            chunk = self._read()
            if not chunk:
                break
            rest += chunk
            end = len(rest) if len(rest) > MAX_LINE_BYTES else rest.rfind(b"\n") + 1
            if end:
                self._emit(rest[:end])
                rest = rest[end:]
        if rest:
            self._emit(rest if self._stream.is_terminal else rest + b"\n")
        os.close(self._stream.reader)

    def _read(self) -> bytes:
        try:
            return os.read(self._stream.reader, CHUNK_BYTES)
        except OSError:
            return b""  # A terminal whose other end is closed.
