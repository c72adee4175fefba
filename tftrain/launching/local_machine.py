"""The machine on which `--layout=auto` plans: this host, or what `--cluster` names, with the ranks of each host."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from tftrain.config.fields import ConfigError, Problem
from tftrain.host import devices
from tftrain.launching.config import LaunchConfig
from tftrain.launching.hosts import Host
from tftrain.plan import machine
from tftrain.plan.cluster import CLUSTERS, Cluster, of_device

logger = logging.getLogger(__name__)

MEGABITS_PER_GB = 8000


def check(hosts: Sequence[Host]) -> None:
    """Raises a ConfigError if the hosts have different numbers of ranks, or this one is not that of rank 0."""
    sizes = {host.name: len(host.slots) for host in hosts}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise _problem("layout", "auto", f"expected as many ranks on each host, given: {shown}")
    if not hosts[0].is_local:
        expected = f"start the launcher on {hosts[0].name}, the host of rank 0, which is measured"
        raise _problem("layout", "auto", expected)


def cluster_of(config: LaunchConfig, hosts: Sequence[Host], machine_file: str) -> Cluster:
    """Returns the hosts of a job as a cluster whose devices are the ranks; measures this host if no file has that yet.

    Raises:
        ConfigError: the GPU, the link, or what `--cluster` names is unknown; or the file can't be written.
    """
    ranks, path = len(hosts[0].slots), Path(machine_file)
    if config.cluster is not None:
        found = machine.named(config.cluster, path)
    elif devices.has_driver():
        found = _of_gpus()
    else:
        found = _measured(path)
        if len(hosts) > 1:
            link = link_gbs(config, hosts[1].launcher_address)
            return dataclasses.replace(machine.shared(found, ranks), network_gbs=min(found.network_gbs, link))
    if found.name == machine.NAME:
        return machine.shared(found, ranks)
    if ranks > 1 and not found.link_gbs:
        expected = f"its link_gbs is 0; expected one rank on each host, or FILE.json with link_gbs for {ranks} ranks"
        raise _problem("cluster", config.cluster, expected)
    return dataclasses.replace(found, per_node=ranks)


def _of_gpus() -> Cluster:
    """Returns the listed cluster of this host's GPUs, with no more memory than the smallest of them has."""
    names, listed = devices.gpu_names(), f"expected --cluster with one of {', '.join(CLUSTERS)}, or FILE.json"
    try:
        found = of_device(names[0] if names else "")
    except ConfigError:
        what = f"the planner does not know {names[0]}" if names else "nvidia-smi names no GPU"
        raise _problem("cluster", None, f"{what}; {listed}, which describes it") from None
    return dataclasses.replace(found, memory_gb=min([found.memory_gb, *devices.gpu_memory_gb("total")]))


def _measured(path: Path) -> Cluster:
    if not path.exists():
        logger.info(f"layout: measuring this host for about 5 seconds; {path} keeps the result")
        machine.measure(path)
    found = machine.read(path)
    return dataclasses.replace(found, memory_gb=min(found.memory_gb, devices.host_memory_gb()))


def link_gbs(config: LaunchConfig, address: str) -> float:
    """Returns the rated speed of the interface towards other hosts, in 1e9 bytes/s; `address` is that of this host.

    Raises:
        ConfigError: the system does not know it.
    """
    import psutil

    chosen = (config.network_interfaces or "").split(",")
    own = [name for name, entries in psutil.net_if_addrs().items() if address in {each.address for each in entries}]
    speeds = psutil.net_if_stats()
    name = next((name for name in (*chosen, *own) if name in speeds), address)
    if speed := speeds[name].speed if name in speeds else 0:
        return speed / MEGABITS_PER_GB
    expected = f"the speed of {name} is not known; expected --cluster=FILE.json with network_gbs, see docs/planner.md"
    raise _problem("cluster", None, expected)


def _problem(flag: str, value: str | None, expected: str) -> ConfigError:
    return ConfigError([Problem(flag, value, expected)])
