"""What ranks can say to each other before Horovod has connected them, through the store that horovodrun keeps for Gloo.

Horovod makes its process sets when it starts. Ranks that want different sets wait for each other there, until Gloo's
time is up and every process aborts without a reason; no collective could tell them beforehand. Open MPI and Slurm have
no such store.
"""

import http.client
import os
import time
import urllib.error
import urllib.request

from tftrain.parallel.launcher import Launch

WAIT_SECONDS = 120
POLL_SECONDS = 0.1


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
    host, port = (environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{part}") for part in ("ADDR", "PORT"))
    if not host or not port:
        return value
    url = f"http://{host}:{port}/tftrain/{name}"
    # Horovod itself goes to its store directly as well.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    last = time.monotonic() + seconds
    try:
        if launch.rank == 0:
            opener.open(urllib.request.Request(url, value.encode(), method="PUT"), timeout=seconds).close()
            return value
        while time.monotonic() < last:
            try:
                with opener.open(url, timeout=seconds) as answer:
                    return answer.read().decode()
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
            time.sleep(POLL_SECONDS)
    except (OSError, http.client.HTTPException):
        pass  # Horovod needs the store too, and has its own words for the lack of it.
    return value
