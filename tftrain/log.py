"""The log: the standard `logging`, and which rank's lines go where.

Modules log with `logging.getLogger(__name__)` and know nothing of ranks. A program calls `configure` once it knows its
rank. Then:

- lines below WARNING come from the chief alone and go to stdout as they are;
- WARNING and above come from every rank and go to stderr as `PROGRAM: rank N: message`.

Every line is flushed at once, because a rank may end by `os._exit`. An error of the stream is raised to the caller, as
`print` does, because a run whose output is lost must not go on unnoticed.
"""

import logging
import sys
from typing import TextIO

from tqdm import tqdm

LEVELS = ("debug", "info", "warning", "error")


class _Handler(logging.Handler):
    """Writes to the standard stream that `sys` has at the moment of the message: tests and callers may replace it."""

    def __init__(self, stream: str, line: str):
        super().__init__()
        self._stream = stream
        self.setFormatter(logging.Formatter(line))

    def emit(self, record: logging.LogRecord) -> None:
        stream: TextIO = getattr(sys, self._stream)
        self.write(self.format(record), stream)
        stream.flush()

    def write(self, line: str, stream: TextIO) -> None:
        # One write for the whole line: the lines of several ranks in one file must not mix.
        stream.write(line + "\n")


class _Lines(_Handler):
    """Lines below WARNING; a progress bar on the same terminal stays under them."""

    def __init__(self, stream: str):
        super().__init__(stream, "%(message)s")
        self.addFilter(lambda record: record.levelno < logging.WARNING)

    def write(self, line: str, stream: TextIO) -> None:
        tqdm.write(line, file=stream)


def configure(
    rank: int | None = None, level: str = "info", program: str = "tftrain.run", stream: str = "stdout"
) -> None:
    """Directs the log of this process; a later call replaces the settings of an earlier one.

    Args:
        rank: of this process, rank 0 is the chief; None for a program without ranks, whose warnings name none.
        level: the least important level that is shown, one of LEVELS.
        program: the name at the beginning of warnings and errors.
        stream: where lines below WARNING go: stdout, or stderr if the program's result goes to stdout.
    """
    logger = logging.getLogger("tftrain")
    # TensorFlow and absl may give the root logger a handler of their own, which would repeat every line.
    logger.propagate = False
    logger.setLevel(level.upper())
    place = "" if rank is None else f" rank {rank}:"
    warnings = _Handler("stderr", f"{program}:{place} %(message)s")
    warnings.setLevel(logging.WARNING)
    logger.handlers = [warnings] if rank else [warnings, _Lines(stream)]
