"""Connects the processes of a run by gRPC, for the collectives of `tensorflow_transport`.

Every process serves the others on a port of its own. The addresses are exchanged through the launcher's store before
Horovod starts, because TensorFlow must know them before it runs its first op.
"""

import os
import socket
from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context

from tftrain.host import log
from tftrain.host.environment import route_to
from tftrain.parallel.rendezvous import WAIT_SECONDS, address_of_store

JOB = "worker"
NO_PROXY = "no_grpc_proxy"  # gRPC reads it in lower case only
ABORTED = "Horovod has been shut down, and TensorFlow's collectives with it"


def reserve_port() -> socket.socket:
    """Returns a socket that keeps a free port until `join` listens there; nobody else gets it meanwhile."""
    reserved = socket.socket()
    # A second socket may be bound to the same port, as long as none but it listens.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def address(reserved: socket.socket, environ: Mapping[str, str] = os.environ) -> str:
    """Returns `host:port` at which the other ranks reach this one: that of the interface of Horovod's Gloo.

    Raises:
        OSError: the launcher's store does not answer.
    """
    host, port = address_of_store(environ).split(":")
    source, addresses = route_to(host, int(port), WAIT_SECONDS)
    own = addresses.get(environ.get("HOROVOD_GLOO_IFACE", ""), [source])[0]
    return f"{own}:{reserved.getsockname()[1]}"


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
    reserved.close()


def abort() -> None:
    """Ends this rank's collectives with an error; later ones fail at once. Any thread may call it."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, ABORTED)
