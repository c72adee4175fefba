"""Connects the processes of a run by gRPC, for the collectives of `tensorflow_transport`.

Every process serves the others on a port of its own. The addresses are exchanged through the launcher's store before
Horovod starts, because TensorFlow must know them before it runs its first op.

TensorFlow's server listens at all addresses of a host and knows no other way. Who can connect to it can run ops in the
process. So a filter of the kernel drops what is sent to the port at another address than that of the run, and what
comes from a host without ranks. It can't distinguish the users of these hosts.
"""

import contextlib
import ctypes
import logging
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context

from tftrain.host import log
from tftrain.host.environment import route_to
from tftrain.parallel.rendezvous import WAIT_SECONDS, address_of_store

logger = logging.getLogger(__name__)

JOB = "worker"
NO_PROXY = "no_grpc_proxy"  # gRPC reads it in lower case only
# For a socket filter, from the kernel's headers: SO_ATTACH_FILTER, and where the packet's IP header begins.
ATTACH_FILTER, IP_HEADER = 26, 0xFFF00000
ABORTED = "Horovod has been shut down, and TensorFlow's collectives with it"


def reserve_port() -> socket.socket:
    """Returns a socket that keeps a free port until `join` listens there; nobody else gets it meanwhile."""
    reserved = socket.socket()
    # A second socket may be bound to the same port, as long as none but it listens.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def own_address(environ: Mapping[str, str] = os.environ) -> str:
    """Returns this host's address for other ranks: on Horovod's interface; without a store, that of the host's name.

    Raises:
        OSError: the launcher's store does not answer, or the name has no address.
    """
    if (store := address_of_store(environ)) is None:
        return socket.gethostbyname(socket.gethostname())
    host, port = store.split(":")
    source, addresses = route_to(host, int(port), WAIT_SECONDS)
    return addresses.get(environ.get("HOROVOD_GLOO_IFACE", ""), [source])[0]


def task(rank: int, size: int) -> int:
    """Returns a rank's number in the cluster of so many ranks.

    All have equally many digits, because TensorFlow orders a group by the names of its devices: 10 is before 9.
    """
    return 10 ** len(str(size)) + rank


def without_proxy(addresses: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns gRPC's list of hosts that it reaches without a proxy: those of the user, and of the ranks."""
    own = environ.get(NO_PROXY) or environ.get("no_proxy", "")
    hosts = dict.fromkeys(address.rpartition(":")[0] for address in addresses)
    return ",".join(filter(None, [own, *hosts]))


def join(rank: int, addresses: Sequence[str], reserved: socket.socket) -> None:
    """Serves the other ranks, given the addresses of all; before TensorFlow has run an op, with its devices chosen."""
    first, size = task(0, len(addresses)), len(addresses)
    os.environ[NO_PROXY] = without_proxy(addresses, os.environ)
    server = tensorflow_server_pb2.ServerDef(job_name=JOB, task_index=task(rank, size), protocol="grpc")
    server.cluster.job.add(name=JOB).tasks.update(enumerate(addresses, first))
    context.context().configure_collective_ops(collective_leader=f"/job:{JOB}/replica:0/task:{first}")
    server.default_session_config.CopyFrom(context.context().config)
    context.context().enable_collective_ops(server)
    with log.native_log_on_failure():  # The server reports its port.
        context.ensure_initialized()
    host, _, port = addresses[rank].rpartition(":")
    try:
        listen_only_at(host, int(port), {each.rpartition(":")[0] for each in addresses})
    except OSError as error:
        logger.warning(f"port {port} of TensorFlow's collectives is open at all addresses of this host: {error}")
    reserved.close()


def listen_only_at(address: str, port: int, sources: Iterable[str]) -> None:
    """Lets the sockets of this process that listen at a port, and their connections, receive what is sent to `address`.

    Args:
        address, sources: IPv4 addresses; those in `sources` may send.

    Raises:
        OSError: there is no such socket, or the kernel takes no filter.
    """
    known = [int.from_bytes(socket.inet_aton(each), "big") for each in sources]
    program = [
        (0x30, 0, 0, IP_HEADER),  # load the first byte: the version and the length of the header
        (0x54, 0, 0, 0xF0),
        (0x15, 1, 0, 0x40),  # IPv4, else drop
        (0x06, 0, 0, 0),
        (0x20, 0, 0, IP_HEADER + 16),  # load the destination
        (0x15, 1, 0, int.from_bytes(socket.inet_aton(address), "big")),  # `address`, else drop
        (0x06, 0, 0, 0),
        (0x20, 0, 0, IP_HEADER + 12),  # load the source; a source that is known is accepted
        *(line for source in known for line in ((0x15, 0, 1, source), (0x06, 0, 0, 0xFFFFFFFF))),
        (0x06, 0, 0, 0),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filters = struct.pack("HP", len(program), ctypes.addressof(code))
    sockets = list(_listening(port))
    if not sockets:
        raise OSError(f"nothing listens at port {port}")
    for listening in sockets:
        with listening:
            listening.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, filters)


def _listening(port: int) -> Iterator[socket.socket]:
    """Yields a copy of each socket of this process that listens at a port."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
            is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
            if is_tcp and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and copy.getsockname()[1] == port:
                yield copy
            else:
                copy.close()


def abort() -> None:
    """Ends this rank's collectives with an error; later ones fail at once. Any thread may call it."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, ABORTED)
