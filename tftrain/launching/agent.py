"""The launcher's agent on one host: `python -m tftrain.launching.agent`, which starts and ends the ranks of the host.

The agent reads messages from standard input and writes messages to standard output, so it works the same as a child of
the launcher and behind ssh:

1. The launcher sends its address. The agent connects to it and answers with the network interface of that connection.
2. The launcher sends the command and the environment of each rank. The agent starts the ranks, or lets a server fork
   them (`forking.py`).
3. The launcher sends signals for the ranks. The agent sends what the ranks print, and the exit code of each rank that
   ends.

The end of the input means that the launcher has ended. Then the agent ends the ranks with SIGTERM, which lets them
save, and later with SIGKILL. It does the same if the launcher's host has not answered for a minute. Each rank has a
session of its own, so that a terminal's Ctrl-C reaches only the launcher. The kernel sends it SIGTERM if the agent is
killed.
"""

import contextlib
import errno
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from tftrain.host import hardware
from tftrain.host.environment import route_to
from tftrain.launching import forking, messages
from tftrain.launching.lines import Stream, forward
from tftrain.supervise.signals import REQUESTS, end_with

CONNECT_SECONDS = 10
# After a rank has ended, a process that it has left behind may still hold its output open.
OUTPUT_SECONDS = 5
# Seconds without an answer, then probes in as many seconds: a minute in all, as `connection.over_ssh` gives ssh.
KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 3}
SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Agent:
    """The ranks of one host, and the connection to the launcher."""

    def __init__(self, commands: BinaryIO, output: int):
        self._commands, self._output = commands, output  # The launcher's messages, and a descriptor for answers.
        self._writing = threading.Lock()
        self._ranks: list[Rank] = []

    def serve(self) -> None:
        """Serves the launcher until every rank has ended."""
        if (hello := self._receive()) is None:
            return
        try:
            if hello["is_parallel"]:
                check_host_name()
            check_memory(hello["memory_gb"])
            self.send(ready=interface(hello["address"], hello["port"], hello["interfaces"]))
            if hello["keepalive_port"]:  # This is another host than the launcher's.
                on_silence(hello["address"], hello["keepalive_port"], lambda: self._abandon(hello["save_seconds"]))
            if (job := self._receive()) is None:
                return
            self._start(job)
            for rank in self._ranks:
                rank.watch()
        except (OSError, LookupError, forking.ForkError) as error:
            self.send(failed=str(error))
        else:
            while command := self._receive():
                for rank in self._ranks:
                    rank.send_signal(command["signal"])
        self._end(hello["save_seconds"])

    def send(self, **message: Any) -> None:
        """Sends a message to the launcher; if the launcher is gone, drops it."""
        line = messages.encode(message)
        with self._writing, contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._output, line) :]

    def rank_ended(self) -> None:
        """Ends the agent after the last rank; a network that is down may never close the input."""
        if all(rank.has_ended for rank in self._ranks):
            os._exit(0)

    def _receive(self) -> dict[str, Any] | None:
        """Returns the next message; None at the end of the input."""
        line = self._commands.readline()
        return messages.decode(line)[1] if line.endswith(b"\n") else None

    def _start(self, job: Mapping[str, Any]) -> None:
        environ, by_rank = {**os.environ, **job["environ"]}, list(job["ranks"].values())
        streams = [{name: Stream(job["terminals"][name]) for name in ("stdout", "stderr")} for _ in by_rank]
        outputs = [tuple(stream.writer for stream in of_rank.values()) for of_rank in streams]
        try:
            if job["fork_server"]:
                processes = forking.start(job["fork_server"], environ, by_rank, outputs, self._commands.fileno())
            else:
                pairs = zip(by_rank, outputs, strict=True)
                processes = (spawn(job["command"], {**environ, **more}, *files) for more, files in pairs)
            for number, process, of_rank in zip(job["ranks"], processes, streams, strict=True):
                self._ranks.append(Rank(int(number), process, of_rank, self))
        finally:
            for file in itertools.chain(*outputs):
                os.close(file)

    def _abandon(self, save_seconds: float) -> None:
        """Ends the ranks and the agent: the network to the launcher is down, so its input may never end."""
        self._end(save_seconds)
        os._exit(1)

    def _end(self, save_seconds: float) -> None:
        last = time.monotonic() + save_seconds
        for rank in self._ranks:
            rank.send_signal(signal.SIGTERM)
        for rank in self._ranks:
            rank.join(last - time.monotonic())
        for rank in self._ranks:
            rank.send_signal(signal.SIGKILL)
        for rank in self._ranks:
            rank.join()


class Rank:
    """The process of one rank, a child that leads a session; `has_ended`: it has ended and its exit code is sent."""

    def __init__(
        self, number: int, process: subprocess.Popen | forking.ForkedRank, streams: Mapping[str, Stream], agent: Agent
    ):
        self._number, self._process, self._streams, self._agent = number, process, streams, agent
        self._lock, self._is_reaped, self.has_ended = threading.Lock(), False, False
        self._waiter = threading.Thread(target=self._wait, daemon=True)

    def watch(self) -> None:
        """Begins to send what the process prints, and in the end its exit code."""
        self._waiter.start()

    def send_signal(self, number: int) -> None:
        """Sends a signal if the process still runs; SIGKILL goes to its whole process group."""
        with self._lock:
            if not self._is_reaped:
                (os.killpg if number == signal.SIGKILL else os.kill)(self._process.pid, number)

    def join(self, seconds: float | None = None) -> None:
        """Waits at most `seconds` until the process has ended and its exit code is sent."""
        if self._waiter.is_alive():
            self._waiter.join(None if seconds is None else max(0, seconds))

    def _emit(self, name: str, data: bytes) -> None:
        self._agent.send(rank=self._number, stream=name, data=data)

    def _wait(self) -> None:
        outputs = [(stream, functools.partial(self._emit, name)) for name, stream in self._streams.items()]
        pumps = [threading.Thread(target=forward, args=each, daemon=True) for each in outputs]
        for pump in pumps:
            pump.start()
        # Until the process is reaped, its number and its group's can't be given to another process.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._is_reaped = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        for pump in pumps:
            pump.join(OUTPUT_SECONDS)
        self._agent.send(rank=self._number, code=code if code >= 0 else 128 - code)
        self.has_ended = True
        self._agent.rank_ended()


def spawn(command: Sequence[str], environ: Mapping[str, str], stdout: int, stderr: int) -> subprocess.Popen:
    """Starts a rank as a program of its own, with these variables alone; `stdout` and `stderr` are descriptors."""
    files = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
    in_child = end_with(os.getpid())
    return subprocess.Popen(command, env=environ, start_new_session=True, preexec_fn=in_child, **files)


def check_host_name() -> None:
    """Raises a LookupError if the host's own name has no address: Gloo would end the process by SIGABRT or SIGSEGV."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise LookupError(
            f"its own name, {name}, has no address, which Gloo needs; expected a line with it in /etc/hosts"
        ) from error


def check_memory(needed: float) -> None:
    """Raises a LookupError if all ranks of this host, with the planned `needed` GB, are more than its memory."""
    if needed and needed > (size := sum(hardware.gpu_memory_gb("total")) or hardware.host_memory_gb()):
        raise LookupError(
            f"this host has {size:.1f} GB of memory, and its ranks need {needed:.1f} GB in this layout; expected hosts "
            "like that of rank 0, or --cluster=FILE.json with the memory_gb of a rank on the smallest host"
        )


def on_silence(address: str, port: int, act: Callable[[], None]) -> None:
    """Calls a function, in another thread, if a host stops to answer.

    The kernels of both hosts send and answer keepalives, so a launcher that is stopped (SIGSTOP) still answers. The
    function is not called if the host closes the connection. Raises an OSError if there is no connection at all.
    """
    connection = socket.create_connection((address, port), CONNECT_SECONDS)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def watch() -> None:
        try:
            connection.recv(1)
        except OSError as error:
            if error.errno in SILENT:
                act()

    threading.Thread(target=watch, daemon=True).start()


def interface(address: str, port: int, allowed: Sequence[str]) -> str:
    """Returns the network interface for the ranks of this host: the first of the allowed ones that it has.

    If none is given, it is the interface by which this host reaches the launcher, which listens at this address. Raises
    an OSError if the launcher can't be reached, and a LookupError if the host has none of the interfaces.
    """
    try:
        source, present = route_to(address, port, CONNECT_SECONDS)
    except OSError as error:
        raise OSError(
            f"can't connect to the launcher at {address}:{port}: {error.strerror or error}; expected a network without "
            "a firewall between the hosts; --network_interfaces chooses another one"
        ) from error
    names = [name for name, addresses in present.items() if source in addresses]
    if allowed and not (names := [name for name in allowed if name in present]):
        raise LookupError(
            f"no interface of --network_interfaces={','.join(allowed)} has an IPv4 address here; this host has "
            f"{', '.join(present)}"
        )
    return names[0]


def main() -> None:
    """Serves the launcher at the other end of standard input and output."""
    for number in REQUESTS:
        # The launcher decides. A handler, unlike SIG_IGN, is not inherited by the ranks.
        signal.signal(number, lambda *_: None)
    Agent(sys.stdin.buffer, sys.stdout.fileno()).serve()


if __name__ == "__main__":
    main()
