"""Servers of HTTP and S3 on this machine, with faults."""

import contextlib
import functools
import http.client
import http.server
import threading
import time

import fsspec
import pytest

from tftrain.files import addresses


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes requests to another server. `faults` has one entry for each of the next requests that get a fault.

    503, and "denied" for 403: the answer, without the server; "reset", "cut": its answer is lost, or half of it is;
    "lost": the connection ends in the middle of the request, which the server does not get.
    """

    protocol_version = "HTTP/1.1"
    target, faults, seconds, requests, faulty = ("", 0), [], 0.0, [], ("GET",)

    def do_GET(self):
        self.requests.append((self.command, self.path))
        fault = self.faults.pop(0) if self.faults and self.command in self.faulty else None
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "lost":
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        if fault in (503, "denied"):
            self.rfile.read(length)
            time.sleep(self.seconds)
            self.send_response(503 if fault == 503 else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("expect", "connection")}
        connection = http.client.HTTPConnection(*self.target)
        connection.request(self.command, self.path, self.rfile.read(length), headers)
        answer = connection.getresponse()
        body = answer.read()
        time.sleep(self.seconds)
        if fault == "reset":
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        self.close_connection = self.close_connection or fault == "cut"

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield server.server_address
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(addresses, "_WAITS", (0.01,) * 3)


@pytest.fixture
def proxy(monkeypatch):
    """Returns a function that starts a proxy before a server."""
    with contextlib.ExitStack() as stack:

        def start(address):
            handler = type("Handler", (Proxy,), {"target": address, "faults": [], "requests": []})
            return handler, stack.enter_context(serving(handler))

        yield start


@pytest.fixture(scope="session")
def s3_server():
    from botocore import session
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        # Each test has a client. Now all of them share the descriptions of S3, megabytes of JSON.
        patch.setattr(session, "create_loader", functools.cache(session.create_loader))
        yield server.get_host_and_port()
    server.stop()


@pytest.fixture
def s3(s3_server, proxy, quick, monkeypatch):
    """A bucket behind a proxy: the proxy's handler and a file system."""
    handler, (host, port) = proxy(s3_server)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    fsspec.filesystem("s3").clear_instance_cache()
    addresses._file_system.cache_clear()
    if not system.exists("bucket"):
        system.mkdir("bucket")
    handler.requests.clear()
    yield handler, system
    fsspec.filesystem("s3").clear_instance_cache()
    addresses._file_system.cache_clear()
