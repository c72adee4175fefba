"""Hosts and slots, from the command line or a file."""

import getpass

import pytest

from tests.kit.ranks import ROOT
from tftrain.config.fields import ConfigError
from tftrain.launching import host_list, hosts
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_proc": 3}, [("localhost", [0, 1, 2], True, "127.0.0.1")]),
        ({"hosts": "127.0.1.1:2"}, [("127.0.1.1", [0, 1], True, "127.0.0.1")]),
        (
            {"num_proc": 3, "hosts": f"localhost:2,{REMOTE}:2,192.0.2.8:2"},
            [("localhost", [0, 1], True, "198.51.100.1"), (REMOTE, [2], False, "198.51.100.1")],
        ),
    ],
    ids=["here", "loopback", "in order"],
)
def test_ranks_fill_the_hosts_in_their_order(options, expected):
    assert places(**options) == expected


def test_all_slots_are_taken_by_default():
    (host,) = hosts.assign(LaunchConfig(hosts="localhost:4"))
    assert [(slot.rank, slot.size, slot.local_size) for slot in host.slots] == [(rank, 4, 4) for rank in range(4)]


def test_a_host_file_has_comments_and_blank_lines(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(f"# all\n\nlocalhost slots=1\n  {REMOTE}  slots = 2 # big\n")
    assert [(name, ranks) for name, ranks, *_ in places(hostfile=str(path))] == [("localhost", [0]), (REMOTE, [1, 2])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alice@node1 slots=2", [("node1", 2, "alice")]),  # DeepSpeed
        ("node1:4\nnode2", [("node1", 4, None), ("node2", 1, None)]),  # MPICH, Intel MPI
        ("node1 slots=2 max_slots=4\nnode2 slots=1 max-slots=1", [("node1", 2, None), ("node2", 1, None)]),  # Open MPI
        ("node1 cpu=3", [("node1", 3, None)]),
        ("node1 8\r\nnode2 8\r\n", [("node1", 8, None), ("node2", 8, None)]),  # LSF
        ("node1\nnode1\nnode2\nnode1", [("node1", 3, None), ("node2", 1, None)]),  # PBS
        ("\ufeffnode[08-10,12]-ib slots = 2", [(f"node{n}-ib", 2, None) for n in ("08", "09", "10", "12")]),  # Slurm
        ("10.0.0.1:2 # first\n\n  gpu-a.example.org  slots=1", [("10.0.0.1", 2, None), ("gpu-a.example.org", 1, None)]),
    ],
)
def test_host_files_of_other_launchers_are_read(tmp_path, text, expected):
    (tmp_path / "hosts").write_bytes(text.encode())
    assert host_list.of_file(str(tmp_path / "hosts")) == expected


def test_a_list_on_the_command_line_has_ranges_users_and_empty_parts():
    assert host_list.of_flag("a:1,b,me@c[1-2,5]:3, ,a:2") == [
        *[("a", 3, None), ("b", 1, None)],
        *[(f"c{number}", 3, "me") for number in (1, 2, 5)],
    ]


def test_ssh_gets_the_user_of_a_host():
    here, there = hosts.assign(LaunchConfig(hosts=f"{getpass.getuser()}@localhost:1,alice@{REMOTE}:1"))
    assert (here.is_local, there.is_local, there.login) == (True, False, f"alice@{REMOTE}")
    (other,) = hosts.assign(LaunchConfig(hosts="alice@localhost"))
    assert (other.is_local, other.login) == (False, "alice@localhost")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_proc": 3, "hosts": "localhost:2"}, "--num_proc=3: expected at most 2, the slots of all hosts"),
        ({"hosts": "a:0"}, "--hosts=a:0: 'a:0': it has no slots; remove the host; expected node1:16,node2:16"),
        ({"hosts": ""}, "--hosts=: it names no host; expected node1:16,node2:16"),
        ({"hosts": "-oProxyCommand=id"}, "'-oProxyCommand=id' is not a host"),
        ({"hosts": "a[1-99999999]"}, "'1-99999999' is not a range of numbers"),
        ({"hosts": "a;id"}, "'a;id' is not a host"),
        ({"hostfile": "/nosuch"}, "--hostfile=/nosuch: No such file or directory; expected a text file"),
    ],
)
def test_bad_hosts_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        places(**options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1 slots=4 sockets=1\n", "'sockets=1' is unknown here; remove it; expected lines as `node1 slots=16`"),
        ("node1 port=22\n", "'port=22' can't be given here; use --ssh_port"),
        ("node1 slots=four\n", "'slots=four' is unknown here"),
        ("node1 slots=-1\n", "'slots=-1' is unknown here"),
        ("\n", "names no host"),
    ],
)
def test_a_bad_host_file_is_refused_by_the_word(tmp_path, text, message):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        places(hostfile=str(path))
