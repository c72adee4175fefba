"""What another user of a host tries: it connects to every port of a job and asks for what is there.

Run by `test_neighbours.py` as user nobody, with the ports as JSON on standard input: prints what each port answered.
"""

import http.client
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)  # how gRPC begins
SECONDS = 1.5


def answers(port: int, request: bytes) -> bytes | None:
    """Returns what a port of loopback sends after a request; None if it takes no connection."""
    try:
        with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
            connection.settimeout(SECONDS)
            connection.sendall(request)
            return connection.recv(4096)
    except TimeoutError:
        return b""
    except OSError:
        return None


def http_status(port: int, request: tuple) -> int | None:
    """Returns the status of an answer to HTTP: to a method, a path and perhaps a body; None without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request(*request)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


REQUESTS = (
    *(("GET", path) for path in ("/tftrain/all_present", "/global/0", "/worker_addresses/localhost:0", "/")),
    *((method, "/tftrain/sizes") for method in ("HEAD", "DELETE", "POST")),
    ("PUT", "/tftrain/resume", b"--hooks=evil:Hook"),
)

if __name__ == "__main__":
    ports = json.load(sys.stdin)
    with ThreadPoolExecutor(100) as pool:  # A port that does not answer takes all its seconds.
        statuses = {port: pool.map(partial(http_status, port), REQUESTS) for port in ports}
        sent = {port: pool.map(partial(answers, port), (b"", PREFACE)) for port in ports}
    shown = {}
    for port in ports:
        first = [(answer or b"").decode("latin-1") for answer in sent[port]]
        shown[port] = {"http": sorted({*statuses[port]} - {None}), "bytes": first}
    print(json.dumps(shown))
