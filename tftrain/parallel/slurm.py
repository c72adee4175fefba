"""Connects the ranks of an `srun` step without MPI: rank 0 serves the rendezvous of Horovod's Gloo.

`tftrain.launch` and horovodrun serve the rendezvous themselves and give its address to the ranks. srun does not, so
each rank computes the address from Slurm's variables: the first host of the step, and a port that belongs to the step.
The token of the job is in a file that only the user can read, in a folder that the hosts share, or in
HOROVOD_JOB_TOKEN, which the batch script may set.

`HOROVOD_CONTROLLER=mpi` connects the ranks through MPI instead.
"""

import atexit
import contextlib
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tftrain.files.addresses import Cache
from tftrain.host.environment import route_to
from tftrain.host.exit_codes import ExitCode, RunError
from tftrain.parallel import store_server
from tftrain.parallel.launcher import Launch, is_slurm_step, tasks_of_hosts
from tftrain.parallel.rendezvous import POLL_SECONDS, STORE_ERRORS, TOKEN, WAIT_SECONDS, LauncherStore

# The last ports: Linux gives those below 61,000 to outgoing connections.
FIRST_PORT, PORTS = 61440, 4096
STEPS_OF_JOB = 16
PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
INTERFACE = "HOROVOD_GLOO_IFACE"
NAME_OF_STEP = "slurm_step"
_OWN_TOKEN = f"or write `export {TOKEN}=$(openssl rand -hex 32)` into the batch script, before srun"


class SlurmError(RunError):
    """The ranks of a step can't be connected."""


class AbsentServerError(SlurmError):
    """Rank 0 serves no rendezvous."""

    exit_code = ExitCode.PEER_ENDED


def connect(launch: Launch, environ: Mapping[str, str] = os.environ, seconds: float = WAIT_SECONDS) -> dict[str, str]:
    """Serves the rendezvous on rank 0 until the process ends; on all ranks, waits for it.

    Args:
        environ: Slurm's variables. The user may set HOROVOD_GLOO_RENDEZVOUS_PORT and HOROVOD_GLOO_IFACE. The token is
            that of the process's environment, which gets one if it has none.
        seconds: how long rank 0 may take.

    Returns:
        Horovod's variables for this rank; none if the process is alone, another launcher started it, or the user
        selects MPI.

    Raises:
        SlurmError: Horovod is not installed; the port is not free; rank 0 does not answer; or no network interface is
            found.
    """
    if launch.size == 1 or not is_slurm_step(environ) or environ.get("HOROVOD_CONTROLLER") == "mpi":
        return {}
    try:
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
        from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    except ImportError as error:
        raise SlurmError(
            f"{launch.size} processes, but Horovod can't be imported ({error}): see python -m tftrain docs cluster"
        ) from error
    tasks = tasks_of_hosts(environ["SLURM_STEP_TASKS_PER_NODE"])
    hosts = [HostInfo(str(number), count) for number, count in enumerate(tasks)]
    slots = get_host_assignments(hosts, launch.size, launch.size)
    own_slot = (environ["SLURM_NODEID"], launch.local_rank)
    slot = next(slot for slot in slots if (slot.hostname, slot.local_rank) == own_slot)
    slot.rank = launch.rank  # Slurm may deal the ranks to the hosts in turn.
    host, port = first_host(environ["SLURM_STEP_NODELIST"]), port_of_step(environ)
    step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    token = None if os.environ.get(TOKEN) else Cache().path("steps", step)
    if launch.rank == 0:
        if token:
            _write_token(token, store_server.make_token())
        address = _serve(host, port, slots, several=len(hosts) > 1)
        LauncherStore(f"{address}:{port}").put(NAME_OF_STEP, step)
    address = _await_server(host, port, step, seconds, token)
    interface = environ.get(INTERFACE) or _interface(host, address, port, len(hosts))
    network = {name: str(value) for name, value in create_run_env_vars(address, [interface], port).items()}
    if "NCCL_SOCKET_IFNAME" in environ:
        del network["NCCL_SOCKET_IFNAME"]
    return {**create_slot_env_vars(slot), **network}


def first_host(hosts: str) -> str:
    """Returns the first host of a list in Slurm's form: "node[03-05,7],login" is node03."""
    first = re.split(r",(?![^\[]*\])", hosts)[0]
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first)


def port_of_step(environ: Mapping[str, str]) -> int:
    """Returns the port of a step's rendezvous: the user's, or the first that `srun --resv-ports` reserved.

    Without either, the numbers of job and step give one; 256 jobs in sequence, of 16 steps each, have different ports.

    Raises:
        SlurmError: the user's is not a number.
    """
    if port := environ.get(PORT):
        if not port.isdecimal():
            raise SlurmError(f"{PORT}={port}: expected the number of a port")
        return int(port)
    if reserved := environ.get("SLURM_STEP_RESV_PORTS"):
        return int(re.match(r"\d+", reserved)[0])
    step = int(environ["SLURM_STEP_ID"]) % STEPS_OF_JOB
    return FIRST_PORT + (int(environ["SLURM_JOB_ID"]) * STEPS_OF_JOB + step) % PORTS


def _serve(host: str, port: int, slots: list, several: bool) -> str:
    """Serves the rendezvous of one or several hosts at the address of `host`, this one, until the process ends.

    Returns:
        The address. If the name has one of loopback, others reach the host at another address: it serves at all.
    """
    try:
        address = socket.gethostbyname(host)
        store_server.serve("" if several and address.startswith("127.") else address, port, slots)
        return address
    except OSError as error:
        remedy = f"set {PORT} to a free port there, the same for all ranks"
        raise SlurmError(f"rank 0 can't listen at port {port} of {host}: {error.strerror}; {remedy}") from error


def _write_token(path: Path, token: str) -> None:
    """Puts a token into a file that only this user can read, until the process ends."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(token)
        new.replace(path)
    except OSError as error:
        raise SlurmError(f"{path}: {error.strerror}; {_OWN_TOKEN}") from error
    atexit.register(path.unlink, missing_ok=True)


def _take_token(path: Path) -> bool:
    """Puts the token in a file of this user into the environment; returns whether there is one."""
    with contextlib.suppress(OSError), open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        if os.fstat(file.fileno()).st_uid == os.getuid():
            os.environ[TOKEN] = file.read()
            return bool(os.environ[TOKEN])
    return False


def _await_server(host: str, port: int, step: str, seconds: float, token: Path | None) -> str:
    """Waits until this step's rank 0 answers; returns its IPv4 address. `token` is the file of the token, if any."""
    last, reason = time.monotonic() + seconds, ""
    while time.monotonic() < last:
        try:
            if token and not _take_token(token):
                reason = f"no token in {token}, which the hosts must share; {_OWN_TOKEN}"
                time.sleep(POLL_SECONDS)
                continue
            address = socket.gethostbyname(host)
            answer = LauncherStore(f"{address}:{port}").get(NAME_OF_STEP, seconds=max(1.0, last - time.monotonic()))
            if answer == step:
                return address
            reason = "another program listens there"
        except STORE_ERRORS as error:
            reason = str(getattr(error, "reason", error))
        time.sleep(POLL_SECONDS)
    why = f"its own output says why, or a firewall is between the hosts; {PORT} sets another port"
    raise AbsentServerError(f"rank 0 did not answer at {host}:{port} within {seconds:g} seconds ({reason}); {why}")


def _interface(host: str, address: str, port: int, hosts: int) -> str:
    """Returns the network interface by which this host reaches rank 0."""
    source, addresses = route_to(address, port, WAIT_SECONDS)
    interface = next((name for name, own in addresses.items() if source in own), None)
    if interface is None or (hosts > 1 and source.startswith("127.")):
        raise SlurmError(
            f"on {socket.gethostname()} the address of {host}, the host of rank 0, is {address}, to which no network "
            f"leads; set {INTERFACE} to the network interface of the ranks, one of {', '.join(addresses)}"
        )
    return interface
