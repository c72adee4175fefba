"""The hosts of a job from `--hosts` or `--hostfile`, their ranks, which Horovod assigns, and the ranks' environment."""

import fnmatch
import getpass
import logging
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from horovod.runner.common.util.hosts import HostInfo, SlotInfo, get_host_assignments
from horovod.runner.util import network

from tftrain.config.fields import ConfigError, Problem
from tftrain.launching import host_list
from tftrain.launching.config import LaunchConfig
from tftrain.launching.host_list import Listed
from tftrain.parallel.rendezvous import TOKEN

logger = logging.getLogger(__name__)

# Environment variables that travel to other hosts: what shells, Python, TensorFlow, Horovod and their libraries read
# where they run. docs/security.md has the same list.
TRAVELS = (
    *("PATH", "*LIBRARY_PATH", "LD_PRELOAD", "PYTHON*", "VIRTUAL_ENV", "CONDA*", "LANG", "LC_*", "TZ"),
    *("TMPDIR", "XDG_CACHE_HOME", "TFTRAIN_*", "HOROVOD_*", "NCCL_*", "GLOO_*", "UCX_*", "TF_*", "XLA_*", "CUDA_*"),
    *("NVIDIA_*", "OMP_*", "MKL_*", "KMP_*", "ONEDNN_*", "DNNL_*", "OPENBLAS_*", "MALLOC_*", "GLIBC_TUNABLES"),
    *("GRPC_*", "*_proxy", "*_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "FSSPEC_*", "HF_HOME", "HF_HUB_OFFLINE"),
    *("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_*"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL*", "AWS_PROFILE", "AWS_CONFIG_FILE"),
)
# They belong to the launcher's host alone, whatever else they match.
STAYS = ("*CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "OLDPWD", "BASH_FUNC_*")
# Names and values that say that the value is a secret.
SECRET = re.compile(
    r"(?i)(^|_)(KEY|PAT|PASS)(_|$)|API_?KEY|TOKEN(?!IZER)|SECRET|PASSW(OR)?D|CREDENTIAL|CONNECTION_STRING"
)
WITH_USER = re.compile(r"://([^/@\s]*)@")
_DISCARD_PORT = 9
_ELSEWHERE = "192.0.2.1"  # An address that stands for any in documentation (RFC 5737): it has the default route.


@dataclass(frozen=True)
class Host:
    """A host that runs ranks."""

    name: str  # as given by the user
    login: str  # what ssh gets: the name, with a user if one is given
    slots: tuple[SlotInfo, ...]  # its ranks
    is_local: bool  # whether it is this machine
    launcher_address: str  # this machine's IPv4 address for connections from that host


def assign(config: LaunchConfig) -> list[Host]:
    """Returns the hosts that get ranks, numbered in their order; raises a ConfigError if they are wrong or too few."""
    listed = {host.name: host for host in _given(config)}
    slots = sum(host.slots for host in listed.values())
    size = config.num_proc or slots
    if size > slots:
        raise ConfigError([Problem("num_proc", size, f"expected at most {slots}, the slots of all hosts")])
    by_host: dict[str, list[SlotInfo]] = {}
    for slot in get_host_assignments([HostInfo(host.name, host.slots) for host in listed.values()], size, size):
        by_host.setdefault(slot.hostname, []).append(slot)
    # The own name of a host is often an address of loopback, such as 127.0.1.1.
    elsewhere = network.filter_local_addresses(list(by_host))
    remote = [name for name in elsewhere if not (network.resolve_host_address(name) or "").startswith("127.")]
    remote += [name for name in by_host if name not in remote and listed[name].user not in (None, getpass.getuser())]
    addresses = {name: _address_towards(name) for name in remote}
    own_address = next(iter(addresses.values()), "127.0.0.1")
    logins = {name: f"{host.user}@{name}" if host.user else name for name, host in listed.items()}
    return [
        Host(name, logins[name], tuple(slots), name not in remote, addresses.get(name, own_address))
        for name, slots in by_host.items()
    ]


def variables(
    host: Host, environ: Mapping[str, str], network: Mapping[str, object], config: LaunchConfig
) -> dict[str, str]:
    """Returns the environment variables that all ranks of a host have.

    They are the launcher's, on other hosts only those that `travels` chooses, and Horovod's for the network.
    """
    chosen_interfaces, passed = config.network_interfaces, dict(environ)
    if not host.is_local:
        passed = {name: value for name, value in environ.items() if travels(name, value, config.pass_env)}
        if secrets := sorted(name for name in environ if name not in passed and is_secret(name, environ[name])):
            logger.info(f"{host.name} does not get {', '.join(secrets)}; --pass_env=NAME sends a variable")
    network = {name: str(value) for name, value in network.items()}
    if chosen_interfaces:
        network["NCCL_SOCKET_IFNAME"] = chosen_interfaces
    elif "NCCL_SOCKET_IFNAME" in environ:
        network.pop("NCCL_SOCKET_IFNAME", None)
    # A rank's lines come out at once, also those of libraries that print.
    return {**passed, "PYTHONUNBUFFERED": "1", **network}


def is_secret(name: str, value: str) -> bool:
    """Whether the name of a variable, or its value, says that it is a secret."""
    return SECRET.search(name) is not None or any(":" in user for user in WITH_USER.findall(value))


def travels(name: str, value: str, chosen: str | None) -> bool:
    """Whether a variable is sent to other hosts; `chosen` is the value of --pass_env."""
    wanted = any(fnmatch.fnmatchcase(name, pattern) for pattern in (chosen or "").split(","))
    usual = any(fnmatch.fnmatchcase(name, pattern) for pattern in TRAVELS) and not is_secret(name, value)
    stays = any(fnmatch.fnmatchcase(name, pattern) for pattern in STAYS)
    return name == TOKEN or ((wanted or usual) and not stays)


def _given(config: LaunchConfig) -> list[Listed]:
    """Returns all hosts that the user names; this machine if there are none."""
    if config.hosts is not None:
        return host_list.of_flag(config.hosts)
    if config.hostfile is not None:
        return host_list.of_file(config.hostfile)
    return [Listed("localhost", config.num_proc)]


def _address_towards(host: str) -> str:
    """Returns this machine's address on the route to a host; a name that only ssh knows has the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        for target in (host, _ELSEWHERE):
            try:
                unsent.connect((target, _DISCARD_PORT))
            except OSError:
                continue
            return unsent.getsockname()[0]
    raise ConfigError([Problem("hosts", host, "no network leads to this host; expected its name or address")])
