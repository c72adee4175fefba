"""The machine on which `--layout=auto` plans: this host, or what `--cluster` names, with the ranks of each host."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from tftrain.config.fields import ConfigError, Problem
from tftrain.host import hardware
from tftrain.launching.config import LaunchConfig
from tftrain.launching.hosts import Host
from tftrain.plan import machine
from tftrain.plan.cluster import CLUSTERS, Cluster, of_device

logger = logging.getLogger(__name__)


def check(hosts: Sequence[Host]) -> None:
    """Raises a ConfigError if the hosts have different numbers of ranks, or this one is not that of rank 0."""
    if len({len(host.slots) for host in hosts}) > 1:
        shown = ", ".join(f"{host.name} {len(host.slots)}" for host in hosts)
        raise _problem("layout", "auto", f"expected as many ranks on each host, given: {shown}")
    if not hosts[0].is_local:
        expected = f"start the launcher on {hosts[0].name}, the host of rank 0, which is measured"
        raise _problem("layout", "auto", expected)


def cluster_of(config: LaunchConfig, hosts: Sequence[Host], machine_file: str) -> Cluster:
    """Returns the hosts of a job as a cluster whose devices are the ranks; measures this host if no file has that yet.

    Raises a ConfigError if the GPU, the link or what `--cluster` names is unknown, or the file can't be written.
    """
    ranks, path = len(hosts[0].slots), Path(machine_file)
    if config.cluster is not None:
        cluster = machine.named(config.cluster, path)
    else:
        cluster = _of_gpus() if hardware.has_driver() else _measured(path)
    if cluster.name == machine.NAME:
        shared = machine.shared(cluster, ranks)
        if len(hosts) == 1 or config.cluster is not None:
            return shared
        return dataclasses.replace(shared, network_gbs=min(cluster.network_gbs, link_gbs(config, hosts[1])))
    if ranks > 1 and not cluster.link_gbs:
        expected = f"its link_gbs is 0; expected one rank on each host, or FILE.json with link_gbs for {ranks} ranks"
        raise _problem("cluster", config.cluster, expected)
    return dataclasses.replace(cluster, per_node=ranks)


def _of_gpus() -> Cluster:
    """Returns the listed cluster of this host's GPUs, with no more memory than the smallest of them has."""
    names = hardware.gpu_names() or ["a GPU that nvidia-smi does not name"]
    try:
        cluster = of_device(names[0])
    except ConfigError:
        expected = f"the planner does not know {names[0]}; expected one of {', '.join(CLUSTERS)}, or FILE.json with it"
        raise _problem("cluster", None, expected) from None
    return dataclasses.replace(cluster, memory_gb=min([cluster.memory_gb, *hardware.gpu_memory_gb("total")]))


def _measured(path: Path) -> Cluster:
    if not path.exists():
        logger.info(f"layout: measuring this host for about 10 seconds; {path} keeps the result")
        machine.measure(path)
    cluster = machine.read(path)
    return dataclasses.replace(cluster, memory_gb=min(cluster.memory_gb, hardware.host_memory_gb()))


def link_gbs(config: LaunchConfig, other: Host) -> float:
    """Returns the rated speed of the interface towards another host, in 1e9 bytes/s; a ConfigError if it is unknown."""
    import psutil

    speeds, names = psutil.net_if_stats(), (config.network_interfaces or "").split(",")
    for name, entries in psutil.net_if_addrs().items():
        names += [name for entry in entries if entry.address == other.launcher_address]
    name = next((name for name in names if name in speeds), "")
    if not name or not speeds[name].speed:
        expected = f"the speed of {name or 'the network'} is not known; expected FILE.json with network_gbs"
        raise _problem("cluster", None, f"{expected}, see python -m tftrain docs planner")
    return speeds[name].speed / 8000  # Mb/s


def _problem(flag: str, value: str | None, expected: str) -> ConfigError:
    return ConfigError([Problem(flag, value, expected)])
