"""Serves the key-value store of a job: what Gloo's ranks need to find each other, and what they tell each other before.

The launcher serves it, or rank 0 of a Slurm step. Everybody who can reach the port could end the job or redirect its
ranks, so each request has the token of the job: a secret in the environment of the launcher and of the ranks, never on
a command line. Whoever connects to a rank by Gloo sends it as well. The Horovod that `make setup` builds asks for it.
"""

import logging
import os
import secrets
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tftrain.parallel.rendezvous import TOKEN

if TYPE_CHECKING:
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHTTPServer

logger = logging.getLogger(__name__)

# Every rank asks for the address of every other one, all at the same time. Horovod's server lets 5 connections wait;
# the kernel drops further ones, and tries again after a second or more.
REQUESTS_WAITING = 4096


def make_token() -> str:
    """Puts the token of a new job into the environment of this process, and returns it."""
    os.environ[TOKEN] = secrets.token_hex(32)
    return os.environ[TOKEN]


def serve(address: str, port: int, slots: Sequence["SlotInfo"]) -> "RendezvousHTTPServer":
    """Serves the store for the ranks of these slots in a thread that ends with the process.

    Args:
        address: an IPv4 address of this host, at which alone it listens; "" for all of them.
        port: 0 for a free one; `server.server_port` is the port.

    Raises:
        OSError: the port is not free, or the address is not one of this host.
        ImportError: Horovod is not installed.
    """
    from horovod.runner.common.util import secret
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    class Handler(RendezvousHandler):
        """Answers at once, in one packet."""

        disable_nagle_algorithm = True
        wbufsize = -1

    if not hasattr(secret, "JOB_TOKEN"):
        logger.warning(
            "this Horovod asks for no token: whoever can reach the ports of this job can change it; `make setup` and "
            "`make wheel` build one that does (python -m tftrain docs security)"
        )
    server = RendezvousHTTPServer((address, port), Handler, 0)
    server.socket.listen(REQUESTS_WAITING)
    server.init(slots)
    threading.Thread(target=server.serve_forever, name="store", daemon=True).start()
    return server
