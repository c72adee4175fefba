"""Hosts and slots, from the command line or a file."""

import pytest

from tests.distributed import ROOT
from tftrain.config.fields import ConfigError
from tftrain.launching import hosts
from tftrain.launching.config import LaunchConfig

REMOTE = "192.0.2.7"


def test_the_guide_names_the_variables_that_travel():
    guide = (ROOT / "docs/security.md").read_text()
    assert all(f"`{pattern}`" in guide for pattern in hosts.TRAVELS)


@pytest.fixture(autouse=True)
def _any_route(monkeypatch):
    monkeypatch.setattr(hosts, "_address_towards", lambda host: "198.51.100.1")


def places(**options):
    return [
        (host.name, [slot.rank for slot in host.slots], host.is_local, host.launcher_address)
        for host in hosts.assign(LaunchConfig(**options))
    ]


def test_without_hosts_all_ranks_run_here():
    assert places(num_proc=3) == [("localhost", [0, 1, 2], True, "127.0.0.1")]


def test_ranks_fill_the_hosts_in_order():
    assert places(num_proc=3, hosts=f"localhost:2,{REMOTE}:2,192.0.2.8:2") == [
        ("localhost", [0, 1], True, "198.51.100.1"),
        (REMOTE, [2], False, "198.51.100.1"),
    ]


def test_an_address_of_loopback_is_here():
    assert places(hosts="127.0.1.1:2") == [("127.0.1.1", [0, 1], True, "127.0.0.1")]


def test_all_slots_are_taken_by_default():
    (host,) = hosts.assign(LaunchConfig(hosts="localhost:4"))
    assert [slot.rank for slot in host.slots] == [0, 1, 2, 3]
    assert {(slot.size, slot.local_size) for slot in host.slots} == {(4, 4)}


def test_a_host_file_has_comments_and_blank_lines(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(f"# all\n\nlocalhost slots=1\n  {REMOTE}  slots = 2 # big\n")
    assert [(name, ranks) for name, ranks, *_ in places(hostfile=str(path))] == [("localhost", [0]), (REMOTE, [1, 2])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_proc": 3, "hosts": "localhost:2"}, "--num_proc=3: expected at most 2, the slots of all hosts"),
        ({"hosts": "a:1,b"}, "--hosts=a:1,b: 'b' is not a host with its slots; expected node1:16,node2:16"),
        ({"hosts": "a:0"}, "--hosts=a:0: 'a:0' is not a host with its slots; expected node1:16,node2:16"),
        ({"hosts": "a:1,a:2"}, "--hosts=a:1,a:2: a occurs twice; expected each host once"),
        ({"hosts": ""}, "--hosts=: '' is not a host with its slots; expected node1:16,node2:16"),
        ({"hostfile": "/nosuch"}, "--hostfile=/nosuch: No such file or directory; expected a text file"),
    ],
)
def test_bad_hosts_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        places(**options)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1:4\n", "'node1:4' is not a host with its slots; expected lines as `node1 slots=16`"),
        ("\n", "names no host"),
    ],
)
def test_a_bad_host_file_is_refused(tmp_path, text, message):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        places(hostfile=str(path))
