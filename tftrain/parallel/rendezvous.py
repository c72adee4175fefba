"""Messages between ranks before Horovod starts, through the key-value store of tftrain.launch or horovodrun.

Horovod creates its process sets when it starts, before any collective can run. If ranks request different sets, they
wait for each other until Gloo times out, and every process aborts without giving a reason. So the ranks compare their
requests through the store first. Open MPI and Slurm have no such store.

The store is one server in Python, so the number of requests grows with the number of ranks only: rank 0 collects what
all ranks say and publishes one value, and a rank that waits for it asks less often if there are more ranks, or if it
has waited longer.
"""

import http.client
import json
import logging
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from tftrain.host.text import listed
from tftrain.parallel.launcher import Launch

logger = logging.getLogger(__name__)

WAIT_SECONDS = 120
ARRIVAL_SECONDS = 600
LATE_SECONDS = 30  # until a line says which ranks are missing
POLL_SECONDS = 0.1
# All waiting ranks together ask so often; the store is one server in Python.
REQUESTS_PER_SECOND = 400
# A rank that has waited for some time waits this share of it until it asks again.
POLL_SHARE = 0.125
STORE_ERRORS = (OSError, http.client.HTTPException)
# The environment variable with the secret of a job, which each request has; Horovod's own requests too.
TOKEN = "HOROVOD_JOB_TOKEN"


class LauncherStore:
    """The key-value store of the launcher; every method may raise STORE_ERRORS."""

    def __init__(self, address: str, scope: str = "tftrain"):
        """Prepares for requests to the server at `host:port`; `scope` is the name space."""
        self._url = f"http://{address}/{scope}/"
        # Without a proxy, as Horovod itself does.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        if token := os.environ.get(TOKEN):
            self._opener.addheaders = [("Authorization", f"Bearer {token}")]

    def put(self, name: str, value: str, seconds: float = WAIT_SECONDS) -> None:
        """Stores a value under a name of letters, digits and underscores."""
        request = urllib.request.Request(self._url + name, value.encode(), method="PUT")
        self._opener.open(request, timeout=seconds).close()

    def get(self, name: str, seconds: float = WAIT_SECONDS) -> str | None:
        """Returns the value of a name; None if it has none."""
        try:
            with self._opener.open(self._url + name, timeout=seconds) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code != http.client.NOT_FOUND:
                raise
            return None

    def wait(self, name: str, seconds: float, ranks: int = 1) -> str | None:
        """Waits for the value of a name and returns it; None after `seconds`; `ranks` wait for it at the same time."""
        begin = time.monotonic()
        while True:
            value, waited = self.get(name, max(seconds, POLL_SECONDS)), time.monotonic() - begin
            if value is not None or waited >= seconds:
                return value
            # The ranks start at about the same time, so the first pause spreads their requests.
            pause = pause_after(waited, ranks) * (1 if waited > pause_after(0, ranks) else random.random())
            time.sleep(min(pause, seconds - waited))


def pause_after(waited: float, ranks: int) -> float:
    """Returns how many seconds a rank, one of so many, waits until it asks again, `waited` after it first asked."""
    return max(POLL_SECONDS, ranks / REQUESTS_PER_SECOND, POLL_SHARE * waited)


def address_of_store(environ: Mapping[str, str]) -> str | None:
    """Returns `host:port` of the launcher's store; None if it has none."""
    host, port = (environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{part}") for part in ("ADDR", "PORT"))
    return f"{host}:{port}" if host and port else None


def value_of_rank_0(
    launch: Launch, name: str, value: str, environ: Mapping[str, str] = os.environ, seconds: float = WAIT_SECONDS
) -> str:
    """Returns rank 0's value of a name; this rank's own if there is no store or it does not answer.

    Every rank must call it, with a name of letters, digits and underscores.
    """
    address = address_of_store(environ)
    if not address:
        return value
    try:
        if launch.rank == 0:
            LauncherStore(address).put(name, value, seconds)
            return value
        answer = LauncherStore(address).wait(name, seconds, launch.size - 1)
    except STORE_ERRORS:
        return value  # Horovod needs the store as well, and reports that it is missing.
    return value if answer is None else answer


def await_all(
    launch: Launch, environ: Mapping[str, str] = os.environ, seconds: float = ARRIVAL_SECONDS, value: str = "yes"
) -> list[str] | None:
    """Waits until every rank has called it, if there is a store, but at most `seconds`.

    Returns:
        The value of each rank; None if there is no store, or it does not answer, or a rank has not come.

    Gloo waits 30 seconds for the last rank and then aborts every process. A host that reads TensorFlow from a slow disk
    needs longer. The launcher handles ranks that have died. Rank 0 asks for every rank and tells the others when all
    are there, so each rank makes few requests.
    """
    address = address_of_store(environ)
    if not address:
        return None
    store, last = LauncherStore(address), time.monotonic() + seconds
    try:
        store.put(f"present_{launch.rank}", value, seconds)
        if launch.rank != 0:
            values = json.loads(store.wait("all_present", seconds, launch.size - 1) or "[]")
        else:
            first = time.monotonic() + min(LATE_SECONDS, seconds)
            others = (store.wait(f"present_{rank}", max(0, first - time.monotonic())) for rank in range(1, launch.size))
            values = [value, *others]
            if missing := [rank for rank, each in enumerate(values) if each is None]:
                ranks = f"{listed(missing, 8)} of {launch.size} ranks"
                logger.info(f"waiting for {ranks}; in a shell that srun has started, use tftrain.launch")
                for rank in missing:
                    values[rank] = store.wait(f"present_{rank}", last - time.monotonic())
            store.put("all_present", json.dumps(values), seconds)
    except STORE_ERRORS:
        return None  # As above.
    # The store may still have the values of an earlier start.
    return values if len(values) == launch.size and None not in values and values[launch.rank] == value else None
