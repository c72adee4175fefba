"""What ranks can say to each other outside of Horovod, through the store that horovodrun keeps for Gloo.

Horovod makes its process sets when it starts. Ranks that want different sets wait for each other there, until Gloo's
time is up and every process aborts without a reason; no collective could tell them beforehand. Open MPI and Slurm have
no such store.
"""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from tftrain.parallel.launcher import Launch

WAIT_SECONDS = 120
ARRIVAL_SECONDS = 600
POLL_SECONDS = 0.1
STORE_ERRORS = (OSError, http.client.HTTPException)


class Store:
    """Names and values, kept by horovodrun; any call may raise STORE_ERRORS."""

    def __init__(self, address: str, scope: str = "tftrain"):
        """Takes the server's `host:port`, and which of its name spaces this is."""
        self._url = f"http://{address}/{scope}/"
        # Horovod itself goes to its store directly as well.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def put(self, name: str, value: str, seconds: float = WAIT_SECONDS) -> None:
        """Keeps a value under a name of letters, digits and underscores."""
        request = urllib.request.Request(self._url + name, value.encode(), method="PUT")
        self._opener.open(request, timeout=seconds).close()

    def get(self, name: str, seconds: float = WAIT_SECONDS) -> str | None:
        """Returns the value of a name, None if it has none."""
        try:
            with self._opener.open(self._url + name, timeout=seconds) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code != http.client.NOT_FOUND:
                raise
            return None

    def wait(self, name: str, seconds: float) -> str | None:
        """Returns the value of a name as soon as it has one, None if that takes longer."""
        last = time.monotonic() + seconds
        while (value := self.get(name, seconds)) is None and time.monotonic() < last:
            time.sleep(POLL_SECONDS)
        return value


def address_of_store(environ: Mapping[str, str]) -> str | None:
    """Returns `host:port` of the launcher's store, None if it has none."""
    host, port = (environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{part}") for part in ("ADDR", "PORT"))
    return f"{host}:{port}" if host and port else None


def value_of_rank_0(launch: Launch, name: str, value: str, environ=os.environ, seconds: float = WAIT_SECONDS) -> str:
    """Returns what rank 0 says under a name.

    Args:
        launch: this process's place; every rank must call it.
        name: letters, digits and underscores.
        value: what this rank says.
        environ: where the launcher says where its store is.
        seconds: how long to wait for rank 0.

    Returns:
        Rank 0's value; this rank's own where there is no store, or nothing comes from it.
    """
    address = address_of_store(environ)
    if not address:
        return value
    try:
        if launch.rank == 0:
            Store(address).put(name, value, seconds)
            return value
        said = Store(address).wait(name, seconds)
    except STORE_ERRORS:
        return value  # Horovod needs the store too, and has its own words for the lack of it.
    return value if said is None else said


def await_all(launch: Launch, environ=os.environ, seconds: float = ARRIVAL_SECONDS) -> None:
    """Returns when every rank has called it, where there is a store, or when the seconds are over.

    Gloo waits 30 seconds for the last rank and then aborts every process; a host that has to read TensorFlow from a
    slow disk comes later than that. A rank that has died is the launcher's affair.
    """
    address = address_of_store(environ)
    if not address:
        return
    store, last = Store(address), time.monotonic() + seconds
    try:
        store.put(f"present_{launch.rank}", "yes", seconds)
        for rank in range(launch.size):
            store.wait(f"present_{rank}", last - time.monotonic())
    except STORE_ERRORS:
        pass  # As above.
