"""The log: the standard `logging`, and which rank's lines go where.

Modules log with `logging.getLogger(__name__)` and know nothing of ranks. A program calls `configure` once it knows its
rank. Then:

- lines below WARNING come from the chief alone and go to stdout as they are;
- WARNING and above come from every rank and go to stderr as `PROGRAM: rank N: message`, with several hosts as
  `PROGRAM: rank N on HOST: message`.

Every line is flushed at once, because a rank may end by `os._exit`.

A line that can't be written is dropped: a full disk under standard output, or a reader that has gone, is no reason to
end hours of training, whose files have all figures. The first such line gives a warning on standard error.
"""

import contextlib
import gc
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TextIO

from tqdm import tqdm

from tftrain.host.text import for_log

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")


class _Handler(logging.Handler):
    """Writes to the standard stream that `sys` has at the moment of the message: tests and callers may replace it."""

    def __init__(self, stream: str, line: str):
        super().__init__()
        self._stream = stream
        self.unwritable: int | None = None  # What the stream was directed to when a line could not be written.
        self.setFormatter(logging.Formatter(line))

    def format(self, record: logging.LogRecord) -> str:
        # Messages have names and addresses of files.
        return for_log(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        stream: TextIO = getattr(sys, self._stream)
        try:
            if self.unwritable is not None:
                os.write(self.unwritable, f"{self.format(record)}\n".encode())  # The disk may have space again.
                return
            self.write(self.format(record), stream)
            stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream object is closed.
            if self.unwritable is None:
                self.unwritable = detach(self._stream)
                if self._stream == "stdout":
                    logger.warning(f"standard output can't be written to ({error}); its lines are lost")

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
    rank: int | None = None, level: str = "info", program: str = "tftrain.run", stream: str = "stdout", host: str = ""
) -> None:
    """Directs the log of this process; a later call replaces the settings of an earlier one.

    Args:
        rank: 0 is the chief; None for a program without ranks, whose warnings name none.
        level: the least important level that is shown, one of LEVELS.
        program: the name at the beginning of warnings and errors.
        stream: where lines below WARNING go: stdout, or stderr if the program's result goes to stdout.
        host: the rank's host, for warnings and errors; "" if all ranks share one.
    """
    closed = replace_closed_streams()
    for stream_of_process in (sys.stdout, sys.stderr):
        if hasattr(stream_of_process, "reconfigure"):  # A notebook has others.
            stream_of_process.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # TensorFlow asks for the name of a temporary folder when it is imported.
        tempfile.tempdir = "/dev/shm"
    root = logging.getLogger("tftrain")
    # TensorFlow and absl may give the root logger a handler of their own, which would repeat every line.
    root.propagate = False
    root.setLevel(level.upper())
    origin = "" if rank is None else f" rank {rank}{host and f' on {host}'}:"
    warnings = _Handler("stderr", f"{program}:{origin} %(message)s")
    warnings.setLevel(logging.WARNING)
    root.handlers = [warnings] if rank else [warnings, _Lines(stream)]
    if "stdout" in closed and not rank:
        logger.warning("standard output is closed; its lines are lost")


def lines_are_lost() -> bool:
    """Whether a line below WARNING could not be written since `configure`."""
    handlers = logging.getLogger("tftrain").handlers
    return any(isinstance(handler, _Lines) and handler.unwritable is not None for handler in handlers)


def replace_closed_streams() -> list[str]:
    """Gives standard streams that were closed when the process started to the null device, and returns their names.

    Python has None in the place of such a stream, and the next file that is opened gets its number. Libraries that
    print would then write into that file.
    """
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    if closed:
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
    for name in closed:
        setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    return closed


def detach(name: str) -> int:
    """Directs a standard stream that can't be written to, stdout or stderr, to the null device.

    What is left in its buffer would fail again at the end of the process, and so would a library that prints. Returns a
    descriptor of the stream's former file; if it had none, of the null device.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        number = getattr(sys, name).fileno()
        before = os.dup(number)
        os.dup2(nowhere, number)
    except (OSError, ValueError, AttributeError):
        setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        return nowhere
    os.close(nowhere)
    return before


@contextlib.contextmanager
def native_log_on_failure() -> Iterator[None]:
    """Shows what is written to standard error inside a `with` statement only if that fails.

    Parts of TensorFlow greet there at every call, whatever TF_CPP_MIN_LOG_LEVEL says.
    """
    sys.stderr.flush()
    before = os.dup(2)
    with open(os.memfd_create("standard error"), "w+b") as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            held_back.seek(0)
            os.write(before, held_back.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Imports TensorFlow inside a `with` statement: silent unless it fails, and without the garbage collector.

    Imports leave next to no garbage, and the collector would take a fifth of their time to look for it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        with native_log_on_failure():
            yield
    finally:
        if was_on:
            gc.enable()
