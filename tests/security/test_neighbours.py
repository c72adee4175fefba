"""Other users of a host, and other hosts: they get nothing from the ports of a job, and its secrets are in no `ps`."""

import contextlib
import http.client
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from horovod.runner.common.util import secret
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.http.http_client import put_data_into_kvstore
from horovod.runner.http.http_server import RendezvousServer

from tests.kit.ranks import ROOT, started_ranks
from tests.observe.test_watchdog import ENDLESS
from tests.supervise.test_elastic_job import Hosts, job
from tftrain.parallel import neighbour, store_server
from tftrain.parallel.rendezvous import TOKEN, LauncherStore
from tools import build_horovod

NOBODY = 65534
# With a group of ranks beside that of all, whose connections are its own, and a server of copies.
LAYOUT = ("--fork_ranks", *ENDLESS[2:], "--tensor_parallel_size=2", "--memory_checkpoint_steps=2")


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def command_lines(processes: list[psutil.Process]) -> list[str]:
    """Returns the words of the command lines of those that have not ended meanwhile."""
    words = []
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            words += each.cmdline()
    return words


def listening(processes: list[psutil.Process]) -> dict[int, set[str]]:
    """Returns the ports at which processes listen, from /proc/net/tcp, with the addresses."""
    own, ports = set(), {}
    for process in processes:
        for file in Path(f"/proc/{process.pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                own.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in own:
                address, port = local.split(":")
                ports.setdefault(int(port, 16), set()).add(address)
    return ports


def neighbours_answers(ports: list[int]) -> dict[str, dict]:
    """Returns what user nobody gets from ports."""
    # A copy of the program: nobody may not be allowed to read this folder.
    program = (Path(__file__).parent / "neighbour.py").read_text()
    command, options = [sys.executable, "-I", "-c", program], {}
    if os.getuid() == 0:
        options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        command[0] = os.path.realpath(sys.executable)
    done = subprocess.run(command, input=json.dumps(ports), text=True, capture_output=True, cwd="/", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_nothing_for_neighbours(process: subprocess.Popen, token: str) -> None:
    processes = family(process)
    ports = listening(processes)
    for port, answer in neighbours_answers(sorted(ports)).items():
        assert set(answer["http"]) <= {400, 403}, (port, answer)
        assert all(not sent or "<title>Error response</title>" in sent for sent in answer["bytes"]), (port, answer)
    assert all(address.endswith("0100007F") for addresses in ports.values() for address in addresses), ports
    shown = command_lines(processes)
    assert token
    assert not any(token in word or "a canary" in word for word in shown)


def token_of(process: subprocess.Popen) -> str:
    """Returns the token in the environment of a rank."""
    return next(filter(None, (each.environ().get(TOKEN) for each in reversed(family(process)))))


@pytest.mark.multirank
def test_nobody_gets_anything_from_the_ports_of_a_job(tmp_path):
    """The elastic job below has ranks that are programs of their own."""
    command = ["-m", "tftrain.launch", "-np", "2", *LAYOUT, f"--output_dir={tmp_path}"]
    with started_ranks(1, command, environ={"AWS_SECRET_ACCESS_KEY": "a canary"}) as launched:
        launched.wait_for(" 20/1000000")
        assert_nothing_for_neighbours(launched.processes[0], token_of(launched.processes[0]))
        assert launched.processes[0].poll() is None
        count = launched.output().count("/1000000")
        launched.wait_for(f" {10 * (count + 3)}/1000000")


@pytest.mark.multirank
def test_nobody_gets_anything_from_the_ports_of_an_elastic_job(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a canary")
    run = [*ENDLESS, "--micro_batch_size=4", f"--output_dir={tmp_path / 'run'}"]
    with job(Hosts(tmp_path, "localhost", slots=2), 2, *run) as launched:
        launched.wait_for(" 20/1000000")
        assert_nothing_for_neighbours(launched.processes[0], token_of(launched.processes[0]))


class Driver:
    """Horovod's elastic driver, as far as a registration needs it."""

    def __init__(self):
        self.registered = []

    def register_worker_server(self, *what):
        self.registered.append(what)


class Opens:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return open, (self._path, "w")


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv(TOKEN, "the token")


def request(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


WITH_TOKEN = {"Authorization": "Bearer the token"}


def test_what_a_neighbour_registers_in_an_elastic_job_is_not_unpickled(tmp_path, token):
    driver, server = Driver(), RendezvousServer()
    port = server.start(create_rendezvous_handler(driver), "127.0.0.1")
    server.init([])
    bomb = pickle.dumps((Opens(tmp_path / "owned"), b"key"))
    for headers in ({}, WITH_TOKEN):
        with contextlib.suppress(OSError, http.client.HTTPException):
            request(port, "PUT", "/worker_addresses/x:0", bomb, **headers)
    assert not (tmp_path / "owned").exists()
    assert driver.registered == []
    addresses, key = {"lo": [("127.0.0.1", 1)]}, secret.make_secret_key()
    put_data_into_kvstore("127.0.0.1", port, "worker_addresses", "host:1", json.dumps([addresses, key.hex()]).encode())
    assert driver.registered == [("host", 1, addresses, key)]
    assert request(port, "GET", "/worker_addresses/host:1", **WITH_TOKEN)[0] == 404, "nobody asks for another's key"
    server.stop()


def test_the_store_answers_nobody_without_the_token_and_takes_no_large_value(token):
    server = store_server.serve("127.0.0.1", 0, [])
    port = server.server_port
    LauncherStore(f"127.0.0.1:{port}").put("resume", "")
    for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer the token "}, {"Authorization": "é"}):
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            status, content = request(port, method, "/tftrain/resume", b"x" if method == "PUT" else None, **headers)
            assert status in (400, 403)
            assert content == b""
    assert LauncherStore(f"127.0.0.1:{port}").get("resume") == ""
    with pytest.raises(OSError, match=r"413|Broken pipe|reset"):  # The server reads none of it.
        LauncherStore(f"127.0.0.1:{port}").put("resume", "x" * (1 << 20) + "x")
    assert request(port, "PUT", "/tftrain/x", b"", **WITH_TOKEN, **{"Content-Length": "-5"})[0] == 400


def test_a_folder_in_memory_is_served_to_those_with_the_key_alone(tmp_path):
    (tmp_path / "state").write_text("weights")
    server = neighbour.serve(tmp_path, "127.0.0.1", "the key")
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        status, content = request(server.server_port, method, "/state")
        assert (status, b"weights" in content) in ((403, False), (501, False))
        assert request(server.server_port, method, "/nosuch")[0] == status, "not even which files there are"
    address, copy = f"127.0.0.1:{server.server_port}", tmp_path / "copy"
    copy.write_text("older")
    neighbour.fetch(address, "the key", "state", copy)
    assert copy.read_text() == "weights"
    with pytest.raises(OSError, match="404"):
        neighbour.fetch(address, "the key", f"../{tmp_path.name}/state", copy)
    server.shutdown()


IMPOSTOR = """
import sys, time
from horovod.tensorflow import mpi_ops
import horovod.tensorflow as hvd
hvd.init()
import tensorflow as tf
assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == 2.0
print("two ranks are connected")
"""


@pytest.mark.multirank
def test_who_connects_to_a_rank_without_the_token_does_not_take_the_place_of_another(token):
    """Connects to each port at which a rank listens as soon as it is there, and sends nothing or another token."""
    taken = []
    with started_ranks(2, ["-c", IMPOSTOR], environ={TOKEN: "the token"}) as launched:
        end, seen = time.monotonic() + 60, set()
        while "connected" not in launched.output() and time.monotonic() < end:
            ports = listening([psutil.Process(each.pid) for each in launched.processes if each.poll() is None])
            for port in set(ports) - seen:
                seen.add(port)
                with contextlib.suppress(OSError):
                    taken.append(socket.create_connection(("127.0.0.1", port), 1))
                    taken[-1].sendall(b"the tokem" if port % 2 else b"")
        assert launched.codes([0, 1], 60) == [0, 0], launched.output()
    for connection in taken:
        connection.close()


def test_nothing_is_imported_from_a_folder_that_others_may_write(tmp_path, monkeypatch):
    """A neighbour puts a package with Horovod's name into /tmp while Horovod is installed."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_horovod.tempfile, "tempdir", None)
    # Its first import alone: TensorFlow takes seconds.
    run = lambda command, **how: subprocess.run([*command[:-1], "import horovod"], check=True, **how)  # noqa: E731
    monkeypatch.setattr(build_horovod, "run", run)
    build_horovod.check()
    assert not (tmp_path / "owned").exists()


def test_a_cached_wheel_that_others_could_have_written_is_refused(tmp_path):
    folder = tmp_path / "horovod"
    folder.mkdir()
    wheel = folder / "horovod-0-py3.whl"
    assert build_horovod.find_wheel(folder) is None
    wheel.write_bytes(b"as built")
    with pytest.raises(build_horovod.BuildError, match="another digest or is missing"):
        build_horovod.find_wheel(folder)
    wheel.with_suffix(".sha256").write_text(build_horovod.sha256(wheel))
    assert build_horovod.find_wheel(folder) == wheel
    folder.chmod(0o777)
    with pytest.raises(build_horovod.BuildError, match="others own it or may write there"):
        build_horovod.find_wheel(folder)
    folder.chmod(0o755)
    wheel.write_bytes(b"changed")
    with pytest.raises(build_horovod.BuildError, match="another digest"):
        build_horovod.find_wheel(folder)


def test_horovodrun_shows_no_variable_and_no_key_on_a_command_line(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text("import os, time; print('CANARY is', os.environ['CANARY']); time.sleep(4)")
    command = [str(Path(sys.executable).with_name("horovodrun")), "-np", "2", "--gloo", sys.executable, str(script)]
    environ = {**os.environ, "CANARY": "a canary's song"}
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as launcher:
        line = next(line for line in launcher.stdout if "CANARY" in line)
        assert "CANARY is a canary's song" in line
        shown = command_lines(family(launcher))
        token = token_of(launcher)
        launcher.terminate()
    assert not any("song" in word or token in word for word in shown)
