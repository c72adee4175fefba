"""Files that a rank takes from a rank on another host, beside the collectives: no training waits for them.

Each rank serves a folder in its memory at the address of the run's network, to those who know a key that the ranks have
exchanged. The content is not encrypted, like that of the collectives.
"""

import functools
import hmac
import http.server
import os
import shutil
import threading
import urllib.request
from pathlib import Path

SECONDS = 30  # As for Gloo's connections.


class _Files(http.server.SimpleHTTPRequestHandler):
    timeout = SECONDS

    def send_head(self):
        """Opens the file of a request of any method."""
        if hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.server.key.encode()):
            return super().send_head()
        return self.send_error(http.HTTPStatus.FORBIDDEN)

    def log_message(self, *_):
        pass


def serve(folder: Path, host: str, key: str) -> http.server.ThreadingHTTPServer:
    """Serves a folder at a free port of an address, `server_port`, in a thread; raises an OSError if it can't."""
    server = http.server.ThreadingHTTPServer((host, 0), functools.partial(_Files, directory=str(folder)))
    server.key, server.handle_error = key, lambda *_: None  # A rank that is gone is no news of this one.
    threading.Thread(target=server.serve_forever, name="memory server", daemon=True).start()
    return server


def fetch(address: str, key: str, name: str, target: Path) -> None:
    """Copies a file of the rank that serves at an address, host and port; raises an OSError if it can't."""
    request = urllib.request.Request(f"http://{address}/{name}", headers={"Authorization": key})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    # What is there is overwritten: memory that was touched before is filled many times as fast.
    opened = os.open(target, os.O_WRONLY | os.O_CREAT, 0o600)
    with open(opened, "wb", buffering=0) as file, opener.open(request, timeout=SECONDS) as answer:
        shutil.copyfileobj(answer, file, 2**20)
        file.truncate()
