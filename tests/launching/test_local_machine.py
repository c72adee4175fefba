"""The machine for which `--layout=auto` plans."""

import dataclasses
import json
from types import SimpleNamespace

import psutil
import pytest

from tests.plan.test_choice import MACHINE
from tftrain.config.fields import ConfigError
from tftrain.host import hardware
from tftrain.launching import local_machine
from tftrain.launching.config import LaunchConfig
from tftrain.launching.hosts import Host
from tftrain.plan import machine
from tftrain.plan.cluster import CLUSTERS


def hosts(*ranks, local=True):
    return [
        Host(f"node{number}", f"node{number}", (None,) * size, local and number == 1, "10.0.0.1")
        for number, size in enumerate(ranks, 1)
    ]


@pytest.fixture
def cpu(monkeypatch):
    monkeypatch.setattr(hardware, "has_driver", lambda: False)
    monkeypatch.setattr(hardware, "host_memory_gb", lambda: 10.0)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(dataclasses.asdict(MACHINE)))
    return str(path)


@pytest.fixture
def speed(monkeypatch):
    """Sets the speed of the interface with the launcher's address, in Mb/s."""

    def has(speed):
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [SimpleNamespace(address="10.0.0.1")]})
        stats = {"eth0": SimpleNamespace(speed=speed), "ib0": SimpleNamespace(speed=200_000)}
        monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)

    return has


@pytest.fixture
def gpus(monkeypatch):
    def are(names, gb):
        monkeypatch.setattr(hardware, "has_driver", lambda: True)
        monkeypatch.setattr(hardware, "gpu_names", lambda: names)
        monkeypatch.setattr(hardware, "gpu_memory_gb", lambda kind: gb)

    return are


def test_ranks_share_the_memory_that_a_control_group_leaves(cpu, file):
    found = local_machine.cluster_of(LaunchConfig(), hosts(4), file)
    assert (found.memory_gb, found.per_node, found.peak_fp32) == (2.5, 4, MACHINE.peak_fp32 / 4)


def test_this_host_is_measured_once_if_no_file_has_it(cpu, tmp_path, monkeypatch, capsys):
    path = tmp_path / "machine.json"
    monkeypatch.setattr(machine, "measure", lambda to: to.write_text(json.dumps(dataclasses.asdict(MACHINE))))
    for _ in range(2):
        assert local_machine.cluster_of(LaunchConfig(), hosts(1), str(path)).name == machine.NAME
    assert capsys.readouterr().out.count("measuring this host for about 10 seconds") == 1


def test_the_link_between_hosts_is_the_rated_speed_of_the_interface(cpu, file, speed):
    speed(1000)
    assert local_machine.cluster_of(LaunchConfig(), hosts(2, 2), file).network_gbs == 0.125
    chosen = LaunchConfig(network_interfaces="ib0,eth0")
    assert local_machine.cluster_of(chosen, hosts(2, 2), file).network_gbs == MACHINE.network_gbs
    assert local_machine.link_gbs(chosen, hosts(2, 2)[1]) == 25.0


def test_a_file_names_the_link_and_the_memory(cpu, file, tmp_path, speed):
    speed(0)
    smaller = tmp_path / "smaller.json"
    smaller.write_text(json.dumps({**dataclasses.asdict(MACHINE), "memory_gb": 4.0, "network_gbs": 0.5}))
    found = local_machine.cluster_of(LaunchConfig(cluster=str(smaller)), hosts(2, 2), "unused")
    assert (found.memory_gb, found.network_gbs, found.per_node) == (2.0, 0.5, 2)


def test_known_gpus_have_the_figures_of_their_cluster_and_their_own_memory(gpus):
    gpus(["NVIDIA A100-SXM4-80GB"] * 4, [85.9, 40.0])
    found = local_machine.cluster_of(LaunchConfig(), hosts(4, 4), "unused")
    assert found == dataclasses.replace(CLUSTERS["a100_80gb"], memory_gb=40.0, per_node=4)


def test_a_listed_cluster_has_the_ranks_of_the_hosts(cpu):
    assert local_machine.cluster_of(LaunchConfig(cluster="h100"), hosts(4), "unused").per_node == 4


def refused(config, places, path):
    try:
        local_machine.check(places)
        local_machine.cluster_of(config, places, path)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("options", "places", "line"),
    [
        ({}, hosts(4, 2), "--layout=auto: expected as many ranks on each host, given: node1 4, node2 2"),
        ({}, hosts(2, 2, local=False), "--layout=auto: start the launcher on node1, the host of rank 0, which is"),
        ({}, hosts(2, 2), "--cluster: the speed of eth0 is not known; expected FILE.json with network_gbs"),
        ({"cluster": "b200"}, hosts(2), "--cluster=b200: expected one of a100_80gb, "),
        ({"cluster": "none.json"}, hosts(2), "--cluster=none.json: expected a JSON file that describes a cluster"),
        ({"cluster": "a64fx"}, hosts(2), "--cluster=a64fx: its link_gbs is 0; expected one rank on each host, or"),
    ],
)
def test_hosts_and_machines_that_can_not_be_planned_are_refused(cpu, file, speed, options, places, line):
    speed(0)
    assert refused(LaunchConfig(**options), places, file).startswith(line)


@pytest.mark.parametrize(("names", "named"), [(["NVIDIA L40S"], "NVIDIA L40S"), ([], "a GPU that nvidia-smi does not")])
def test_a_gpu_that_is_not_known_is_refused_with_those_that_are(gpus, names, named):
    gpus(names, [])
    line = refused(LaunchConfig(), hosts(2), "unused")
    assert line.startswith(f"--cluster: the planner does not know {named}")
    assert "expected one of a100_80gb," in line
