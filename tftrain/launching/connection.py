"""The launcher's connection to the agent on one host: a child process, or ssh."""

import contextlib
import os
import queue
import select
import shlex
import subprocess
import sys
import threading
from typing import Any, BinaryIO, NamedTuple

from horovod.runner.common.util.env import KUBEFLOW_MPI_EXEC, is_kubeflow_mpi

from tftrain.launching import messages
from tftrain.launching.config import LaunchConfig
from tftrain.launching.hosts import Host

AGENT = ("-m", "tftrain.launching.agent")
CONNECT_SECONDS = 10
CLOSE_SECONDS = 5
# Nobody answers a question. After a minute without an answer of the host, ssh ends. What it thinks of the host's key
# stands in its own configuration.
SSH_OPTIONS = ("BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}", "ServerAliveInterval=15", "ServerAliveCountMax=4")
# What the agent's own interpreter may need; the ranks' variables follow in a message.
FOR_INTERPRETER = ("LD_LIBRARY_PATH", "PYTHONPATH")


class AgentEvent(NamedTuple):
    """What an agent reports: one of its messages, or None when the connection has ended."""

    connection: "Connection"
    message: dict[str, Any] | None


class Output:
    """The launcher's standard output and error; one that is closed or full takes nothing, and the ranks go on."""

    def __init__(self):
        self._files = {"stdout": 1, "stderr": 2}
        self._lock = threading.Lock()

    def write(self, stream: str, data: bytes) -> None:
        """Writes lines, never among those of another rank."""
        file = self._files[stream]
        with self._lock, contextlib.suppress(OSError):
            while data:
                try:
                    data = data[os.write(file, data) :]
                except BlockingIOError:
                    select.select([], [file], [])

    def terminals(self) -> dict[str, tuple[int, int] | None]:
        """Returns rows and columns of each stream's terminal; None if it is none."""
        sizes = dict.fromkeys(self._files)
        for name, file in self._files.items():
            with contextlib.suppress(OSError):
                columns, rows = os.get_terminal_size(file)
                sizes[name] = rows, columns
        return sizes


class Connection:
    """An agent and its process; `interface` is the network interface for the ranks, once the agent has sent it."""

    def __init__(self, host: Host, config: LaunchConfig, events: "queue.Queue[AgentEvent]", output: Output):
        """Starts the agent; `output` gets the output of the ranks and of ssh, `events` all other messages."""
        self.host, self.interface = host, ""
        self.returncode: int | None = None  # known once the connection has ended
        self.last_error = ""  # the last line on standard error
        self._events, self._output = events, output
        self.command = [sys.executable, *AGENT] if host.is_local else over_ssh(host.login, config)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        # In a session of its own, because the terminal's Ctrl-C is not for it.
        self._process = subprocess.Popen(self.command, start_new_session=True, **pipes)
        errors = threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
        errors.start()
        threading.Thread(target=self._receive, args=(errors,), daemon=True).start()

    def send(self, **message: Any) -> None:
        """Sends a message to the agent; the end of the connection is reported as an event."""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(messages.encode(message))
            self._process.stdin.flush()

    def close(self) -> None:
        """Tells the agent that there are no more messages."""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()

    def end(self, seconds: float) -> None:
        """Waits at most `seconds` for the end of the process, then kills it."""
        self.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self, errors: threading.Thread) -> None:
        for line in self._process.stdout:
            try:
                noise, message = messages.decode(line)
            except ValueError:
                break
            if noise:
                self._output.write("stderr", noise if message is None else noise + b"\n")
            if message and "stream" in message:
                self._output.write(message["stream"], message["data"].encode("latin-1"))
            elif message:
                self._events.put(AgentEvent(self, message))
        errors.join(CLOSE_SECONDS)
        self.returncode = self._process.wait()
        self._events.put(AgentEvent(self, None))

    def _pass_on(self, stream: BinaryIO) -> None:
        for line in stream:
            self.last_error = line.decode(errors="replace").strip() or self.last_error
            self._output.write("stderr", line)


def over_ssh(login: str, config: LaunchConfig) -> list[str]:
    """Returns the command that starts the agent on another host, in this folder and with this interpreter."""
    variables = [f"{name}={os.environ[name]}" for name in FOR_INTERPRETER if name in os.environ]
    there = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *variables, sys.executable, *AGENT])}"
    if is_kubeflow_mpi():
        return [KUBEFLOW_MPI_EXEC, login, there]
    options = [word for option in SSH_OPTIONS for word in ("-o", option)]
    options += ["-p", str(config.ssh_port)] if config.ssh_port else []
    options += ["-i", config.ssh_identity_file] if config.ssh_identity_file else []
    return ["ssh", *options, "--", login, there]
