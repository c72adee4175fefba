"""Runs fuzz cases in a child process under limits of memory and time; a child that dies is a finding, not an end.

A case is (target, seed, number): its damage is drawn from these three alone, so it can be run again by itself.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import tempfile
import traceback
import zlib
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import BinaryIO, NamedTuple

import numpy as np

SECONDS = 10
MEMORY = 256 << 20
LONGEST_MESSAGE = 5000
_FORK = multiprocessing.get_context("fork")


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
        for result in _results_of_child(target, seed, list(waiting)):
            waiting.pop(0)
            yield result


def _results_of_child(target: Target, seed: int, cases: list[int]) -> Iterable[Result]:
    """Yields the results of a forked process until it is done, or has not outlived a case, whose result is the last."""
    receiver, sender = _FORK.Pipe(duplex=False)
    with open(os.memfd_create("output"), "r+b") as log, receiver:
        child = _FORK.Process(target=_work, args=(target, seed, cases, sender, log.fileno()))
        child.start()
        sender.close()
        try:
            for case in cases:
                # The first case may wait for TensorFlow.
                if not receiver.poll(SECONDS if case != cases[0] else 10 * SECONDS):
                    yield Result(case, f"no end after {SECONDS} s\n{_end_of(log)}")
                    return
                try:
                    outcome = receiver.recv()
                except EOFError:
                    child.join()
                    code = child.exitcode
                    death = f"killed by {signal.Signals(-code).name}" if code < 0 else f"the process ended with {code}"
                    yield Result(case, f"{death}\n{_end_of(log)}")
                    return
                yield Result(case, outcome)
        finally:
            child.kill()
            child.join()


def _end_of(log: BinaryIO) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 3000))
    return log.read().decode(errors="replace")


def _work(target: Target, seed: int, cases: list[int], results: Connection, output: int) -> None:
    for stream in (1, 2):
        os.dup2(output, stream)
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
                results.send(outcome[:60_000])


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
