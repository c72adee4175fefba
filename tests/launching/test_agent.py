"""The agent of a host: what it checks before a rank starts."""

import errno
import socket
import threading

import pytest

from tftrain.launching import agent


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


def test_the_interface_is_the_first_given_one_that_is_there_or_that_of_the_route_to_the_launcher(server):
    assert agent.interface(*server, []) == "lo"
    assert agent.interface(*server, ["nosuch0", "lo"]) == "lo"
    with pytest.raises(LookupError, match="no interface of --network_interfaces=nosuch0 has an IPv4 address"):
        agent.interface(*server, ["nosuch0"])


def test_a_launcher_that_can_not_be_reached_is_named():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address, port = closed.getsockname()
    with pytest.raises(
        OSError, match=f"can't connect to the launcher at 127.0.0.1:{port}: Connection refused; expected"
    ):
        agent.interface(address, port, [])


def test_a_launcher_that_stops_to_answer_is_noticed(server, monkeypatch):
    # The kernel reports silence as an error of the connection, after a minute: see tests/hosts.
    monkeypatch.setattr(
        agent.socket.socket, "recv", lambda *_: (_ for _ in ()).throw(TimeoutError(errno.ETIMEDOUT, ""))
    )
    silent = threading.Event()
    agent.on_silence(*server, silent.set)
    assert silent.wait(5)


def test_a_launcher_that_ends_is_not_silent():
    silent = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        agent.on_silence(*listening.getsockname(), silent.set)
    assert not silent.wait(0.3)


def test_a_host_whose_own_name_has_no_address_is_refused(monkeypatch):
    agent.check_host_name()
    monkeypatch.setattr(socket, "gethostname", lambda: "nosuch.invalid")
    with pytest.raises(LookupError, match=r"its own name, nosuch\.invalid, has no address, which Gloo needs"):
        agent.check_host_name()
