"""Runs fuzz cases in a child process under limits of memory and time; a child that dies is a finding, not an end.

A case is (target, seed, number): its damage is drawn from these three alone, so it can be run again by itself.
"""

import contextlib
import faulthandler
import os
import pathlib
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

SECONDS = 10
MEMORY = 256 << 20
LONGEST_MESSAGE = 5000


class Target:
    """What is fuzzed: a kind of file, and the code that reads it.

    Attributes:
        name: in the command line.
        clean: the exceptions that a reader may raise of such a file.
    """

    name = ""
    clean: tuple[type[Exception], ...] = ()

    def begin(self) -> None:
        """Makes the undamaged content; called once in each child, before memory is limited."""

    def damage(self, rng: np.random.Generator, folder: pathlib.Path) -> str:
        """Writes a damaged file into an empty folder and returns its name, which a message must hold."""
        raise NotImplementedError

    def use(self, folder: pathlib.Path) -> None:
        """Reads the file as the product does.

        Raises:
            one of `clean`: the file is refused; AssertionError: it was accepted and is wrong.
        """
        raise NotImplementedError


class Result(NamedTuple):
    """What came of a case: "accepted", "refused", or what is wrong with how it ended."""

    case: int
    outcome: str

    @property
    def failed(self) -> bool:
        return self.outcome not in ("accepted", "refused")


def run(target: Target, seed: int, cases: Iterable[int]) -> Iterable[Result]:
    """Yields the result of every case; after a crash or a hang the next child goes on after it."""
    waiting = list(cases)
    while waiting:
        child = _Child(target, seed, waiting)
        try:
            for result in child.results():
                waiting.pop(0)
                yield result
        finally:
            child.end()


class _Child:
    """A forked process that works through cases and says the outcome of each on a pipe, one a line."""

    def __init__(self, target: Target, seed: int, cases: list[int]):
        self._cases = cases
        self._log = open(os.memfd_create("output"), "r+b")  # noqa: SIM115
        self._pipe, write = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._pipe)
                for stream in (1, 2):
                    os.dup2(self._log.fileno(), stream)
                _work(target, seed, cases, write)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        os.close(write)

    def results(self) -> Iterable[Result]:
        """Yields results until the child is done, or has not outlived a case, whose result is the last."""
        received = b""
        for case in list(self._cases):
            # The first line may wait for TensorFlow.
            while b"\n" not in received:
                if not select.select([self._pipe], [], [], SECONDS if case != self._cases[0] else 10 * SECONDS)[0]:
                    yield Result(case, f"no end after {SECONDS} s{self._said()}")
                    return
                block = os.read(self._pipe, 1 << 16)
                if not block:
                    yield Result(case, f"{self._death()}{self._said()}")
                    return
                received += block
            line, _, received = received.partition(b"\n")
            yield Result(case, line.decode().replace("\\n", "\n"))

    def _death(self) -> str:
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"the process ended with {code}"

    def _said(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 3000))
        return "\n" + self._log.read().decode(errors="replace")

    def end(self) -> None:
        """Ends the process if it is still there."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._pipe)
        self._log.close()


def _work(target: Target, seed: int, cases: list[int], pipe: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(2)
    target.begin()
    # The second warms up what is made at the first use; none of it is the case's own.
    for limited in (False, True):
        if limited:
            used = int(pathlib.Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) << 10
            resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
        for case in cases if limited else cases[:1]:
            outcome = _outcome(target, np.random.default_rng([seed, zlib.crc32(target.name.encode()), case]))
            if limited:
                os.write(pipe, outcome.replace("\n", "\\n").encode()[:60_000] + b"\n")


def _outcome(target: Target, rng: np.random.Generator) -> str:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fuzz."))
    outside = folder / "precious"
    outside.write_text("as it was")
    inside = folder / "in"
    inside.mkdir()
    try:
        name = target.damage(rng, inside)
        try:
            target.use(inside)
            outcome = "accepted"
        except target.clean as error:
            outcome = _message_fault(str(error), name) or "refused"
        if outside.read_text() != "as it was":
            return "a file outside of the folder was changed"
        if set(os.listdir(folder)) != {"precious", "in"}:
            return f"files outside of the folder: {os.listdir(folder)}"
        return outcome
    except BaseException as error:
        return f"unclean {type(error).__name__}\n{''.join(traceback.format_exception(error))[-3000:]}"
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)


def _message_fault(message: str, name: str) -> str:
    """Returns what is wrong with a message, if anything."""
    if not message.isprintable() or len(message) > LONGEST_MESSAGE:
        return f"a message of {len(message)} characters that is not one line: {message[:500]!r}"
    return "" if name in message else f"a message that does not name {name}: {message}"
