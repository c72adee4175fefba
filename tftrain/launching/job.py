"""A job: starts the ranks on all hosts, passes signals on, and ends when every rank has ended.

After a rank has failed or stopped, the others have some time to end by themselves (docs/reliability.md). Then the
launcher ends them.
"""

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

from tftrain.host.exit_codes import ExitCode, RunError
from tftrain.launching.config import LaunchConfig
from tftrain.launching.connection import AgentEvent, Connection, Output
from tftrain.launching.hosts import Host, variables
from tftrain.launching.layouts import Layouts
from tftrain.launching.outcome import Ended, exit_code, last_line, named
from tftrain.parallel import store_server
from tftrain.parallel.rendezvous import STORE_ERRORS, LauncherStore
from tftrain.supervise.signals import Signals

logger = logging.getLogger(__name__)

# Codes of ranks that stop because of a signal: others may still write the checkpoint.
STOPPING = (ExitCode.STOPPED, ExitCode.NOT_SAVED)
# Names of the signals by the exit codes of processes that they end.
SIGNALS = {ExitCode.SIGNALLED + number: number.name for number in signal.Signals}
CLOSE_SECONDS = 2
POLL_SECONDS = 2  # between questions whether a layout is slow
SSH_FAILED = 255


class Limits(NamedTuple):
    """Seconds for the ranks to end by themselves."""

    save: float  # after a signal, from its arrival to the end
    connected: float = 45  # after a rank has failed, if all ranks were connected
    starting: float = 10  # the same, if they were not: ranks that wait for the failed one do not learn of its end
    terminate: float = 10  # from SIGTERM to SIGKILL
    kill: float = 5  # from SIGKILL to the end of the job


class LaunchError(RunError):
    """The ranks can't be started."""


def run(
    hosts: Sequence[Host],
    command: list[str],
    config: LaunchConfig,
    limits: Limits,
    fork_server: list[str] | None,
    layouts: Layouts | None = None,
) -> int | None:
    """Runs a command as ranks on the hosts and returns the exit code of the job; call it in the main thread.

    `fork_server` is a program that forks the ranks of a host, each as `command` (see `forking`); None to start each
    rank. With `layouts`, None is returned if the run is to be started again with another layout.

    Raises a LaunchError if a host does not answer, or if its agent can't start.
    """
    # A shell starts background jobs with SIGINT ignored; the launcher listens to it all the same.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    store_server.make_token()
    # One address serves all hosts, unless they are reached by several networks.
    addresses = {host.launcher_address for host in hosts}
    address = addresses.pop() if len(addresses) == 1 else ""
    server = store_server.serve(address, 0, [slot for host in hosts for slot in host.slots])
    job = _Job(hosts, config, limits, layouts, address)
    with Signals(job.request, job.force, "it goes to the ranks, which save and end"):
        try:
            return job.connect(server.server_port) or job.supervise(command, fork_server)
        finally:
            job.close()


class _Job:
    """The state of `run`."""

    def __init__(
        self, hosts: Sequence[Host], config: LaunchConfig, limits: Limits, layouts: Layouts | None, address: str
    ):
        self._hosts, self._config, self._limits, self._layouts = hosts, config, limits, layouts
        self._address = address  # at which the store listens; "" for all of this host
        # Reports of agents, a first signal, and the exit code after a second one.
        self._events: queue.Queue[AgentEvent | signal.Signals | int] = queue.Queue()
        self._output = Output()
        self._connections: list[Connection] = []
        self._host_names = {slot.rank: host.name for host in hosts for slot in host.slots}
        self._ended: dict[int, Ended] = {}
        # What is done to the ranks at a time: a signal; None to give them up.
        self._steps: list[tuple[float, int | None]] = []
        self._stop_requested = self._by_launcher = False
        self._forced: int | None = None
        # Agents of other hosts connect to it. The kernel accepts the connections and answers keepalives.
        self._keepalive = None
        if not all(host.is_local for host in hosts):
            self._keepalive = socket.create_server((address, 0), backlog=store_server.REQUESTS_WAITING)

    def request(self, name: str) -> None:
        """Takes a first signal, from any thread."""
        self._events.put(signal.Signals[name])

    def force(self, code: int) -> None:
        """Takes a second signal, from any thread: kills the ranks, and ends the launcher even if it is blocked."""
        self._forced = code  # First, because the ends of all ranks may be in the queue before the event.
        self._send(signal.SIGKILL)
        self._events.put(code)
        timer = threading.Timer(self._limits.kill, os._exit, [code])
        timer.daemon = True
        timer.start()

    def connect(self, port: int) -> int:
        """Starts the agents and waits until each has found its network; returns a code if a signal ends the job."""
        config, last = self._config, time.monotonic() + self._config.start_timeout
        self._port = port
        interfaces = config.network_interfaces.split(",") if config.network_interfaces else []
        for host in self._hosts:
            connection = Connection(host, config, self._events, self._output)
            self._connections.append(connection)
            logger.debug(f"{host.name}: ranks {[slot.rank for slot in host.slots]}: {' '.join(connection.command)}")
            connection.send(
                address=host.launcher_address,
                port=port,
                keepalive_port=self._keepalive.getsockname()[1] if self._keepalive and not host.is_local else 0,
                interfaces=interfaces,
                is_parallel=len(self._host_names) > 1,
                save_seconds=self._limits.save,
                memory_gb=self._layouts.memory_gb * len(host.slots) if self._layouts else 0.0,
            )
        while waiting := [connection for connection in self._connections if not connection.interface]:
            event = self._next(last)
            if event is None:
                names = ", ".join(connection.host.name for connection in waiting)
                raise LaunchError(f"{names}: no answer within --start_timeout={config.start_timeout:g} seconds")
            if isinstance(event, int):
                return ExitCode.SIGNALLED + event if isinstance(event, signal.Signals) else event
            if event.message is None:
                raise LaunchError(_not_started(event.connection))
            if "failed" in event.message:
                raise LaunchError(f"{event.connection.host.name}: {event.message['failed']}")
            event.connection.interface, event.connection.last_error = event.message["ready"], ""
        return 0

    def supervise(self, command: list[str], fork_server: list[str] | None) -> int | None:
        """Starts the ranks, waits until all have ended, and returns the exit code of the job; None: see `run`."""
        for connection in self._connections:
            host = connection.host
            network = create_run_env_vars(host.launcher_address, [connection.interface], self._port)
            logger.debug(f"{host.name}: network interface {connection.interface}")
            connection.send(
                command=command,
                fork_server=fork_server,
                environ=variables(host, os.environ, network, self._config),
                ranks={slot.rank: create_slot_env_vars(slot) for slot in host.slots},
                terminals=self._output.terminals(),
            )
        while len(self._ended) < len(self._host_names):
            wait = time.monotonic() + POLL_SECONDS if self._layouts else None
            event = self._next(self._steps[0][0] if self._steps else wait)
            if event is None and self._steps:
                self._take_step(self._steps.pop(0)[1])
            elif event is None:
                if self._layouts.is_slow():
                    self._send(signal.SIGUSR1)
                    self._plan(self._limits.save, None)
            elif isinstance(event, signal.Signals):
                self._stop_requested = True
                self._send(event)
                self._plan(self._limits.save, None)
            elif isinstance(event, int):
                return event
            elif event.message is None:
                self._lose(event.connection)
            elif "failed" in event.message:
                self._fail(event.connection, event.message["failed"])
            else:
                self._record(event.message["rank"], event.message["code"])
        if self._forced is not None:
            return self._forced
        code = exit_code(self._ended.values(), self._stop_requested)
        if line := last_line(code, self._ended, self._host_names):
            logger.error(line)
        if self._layouts and not self._stop_requested and self._layouts.go_on(code):
            return None
        return code

    def close(self) -> None:
        if self._keepalive:
            self._keepalive.close()
        last = time.monotonic() + CLOSE_SECONDS
        for connection in self._connections:
            connection.close()
        for connection in self._connections:
            connection.end(last - time.monotonic())

    def _next(self, last: float | None) -> AgentEvent | signal.Signals | int | None:
        """Returns the next event; None if there is none until a time of the monotonic clock."""
        try:
            return self._events.get(timeout=None if last is None else max(0, last - time.monotonic()))
        except queue.Empty:
            return None

    def _send(self, number: int) -> None:
        for connection in self._connections:
            connection.send(signal=number)

    def _record(self, rank: int, code: int, is_lost: bool = False) -> None:
        """Records the end of a rank, after which the others may take only so long."""
        self._ended[rank] = Ended(code, self._by_launcher, is_lost)
        logger.debug(f"{named([rank], self._host_names)} {'is lost' if is_lost else f'ended with {code}'}")
        if code == ExitCode.DONE or self._steps:
            return
        if code in SIGNALS:
            # Such a rank says nothing itself.
            logger.warning(f"{named([rank], self._host_names)} was ended by {SIGNALS[code]}")
        if code in STOPPING:
            self._plan(self._limits.save, None)
        else:
            self._plan(self._limits.connected if self._are_connected() else self._limits.starting, signal.SIGTERM)

    def _lose(self, connection: Connection) -> None:
        """Records ranks of which no more will be heard."""
        if lost := self._running(connection.host):
            reason = f": {connection.last_error}" if connection.last_error else ""
            logger.error(f"{connection.host.name}: the connection to its ranks has ended{reason}")
        for rank in lost:
            self._record(rank, ExitCode.PEER_ENDED, is_lost=True)

    def _fail(self, connection: Connection, reason: str) -> None:
        """Records ranks that can't be started."""
        logger.error(f"{connection.host.name}: {reason}")
        for rank in self._running(connection.host):
            self._record(rank, ExitCode.FAILED)

    def _running(self, host: Host) -> list[int]:
        return [slot.rank for slot in host.slots if slot.rank not in self._ended]

    def _plan(self, seconds: float, number: int | None) -> None:
        """Plans the end of the ranks that still run after so many seconds, unless it is planned already."""
        at = time.monotonic() + seconds
        if self._steps:
            return
        if number is not None:
            self._steps.append((at, number))
            at += self._limits.terminate
        self._steps += [(at, signal.SIGKILL), (at + self._limits.kill, None)]

    def _take_step(self, number: int | None) -> None:
        running = [rank for rank in self._host_names if rank not in self._ended]
        shown = named(running, self._host_names)
        self._by_launcher = True
        if number is None:
            self._ended.update((rank, Ended(ExitCode.SIGNALLED + signal.SIGKILL, True)) for rank in running)
            logger.error(f"{shown}: no answer; end their processes there if they still run")
            return
        logger.warning(f"{shown} still running: sending {signal.Signals(number).name}")
        self._send(number)

    def _are_connected(self) -> bool:
        """Returns whether every rank has reached the start of Horovod; ranks put a note into the store there."""
        store = LauncherStore(f"{self._address or '127.0.0.1'}:{self._port}")
        try:
            return all(store.get(f"present_{rank}", seconds=5) is not None for rank in self._host_names)
        except STORE_ERRORS:
            return True


def _not_started(connection: Connection) -> str:
    """Returns why an agent did not answer: ssh itself has failed, or what it should run on that host."""
    host, ranks = connection.host.name, [slot.rank for slot in connection.host.slots]
    line = f"{named(ranks, dict.fromkeys(ranks, host))} can't start: {connection.last_error or 'no reason given'}"
    if connection.returncode == SSH_FAILED:
        return f"{line}; expected `ssh {connection.host.login} true` to work without a password"
    return (
        f"{line}; the launcher's agent ended there with {connection.returncode}; expected on that host this folder, "
        f"{os.getcwd()}, and this interpreter, {sys.executable}"
    )
