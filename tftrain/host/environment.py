"""What this process runs on: versions of packages that decide about a run's numbers, the host's name and network."""

import hashlib
import os
import platform
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import tftrain

PACKAGES = ("tensorflow", "tf-keras", "tensorflow-text", "horovod", "numpy", "safetensors", "tokenizers")


def versions() -> dict[str, str | None]:
    """Returns the version of Python and of each of `PACKAGES`; None for a package that is not installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def project(package: Path = Path(__file__).parents[1]) -> str:
    """Returns the version of tftrain, with a digest of its sources: two checkouts may have the same version."""
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(f"{path.relative_to(package)}\0".encode())
        sources.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{tftrain.__version__}, sources {sources.hexdigest()[:8]}"


def host_name(environ: Mapping[str, str] = os.environ) -> str:
    """Returns this host's name, as it was given to the launcher if that passes it on."""
    return environ.get("HOROVOD_HOSTNAME") or socket.gethostname()


def route_to(address: str, port: int, seconds: float) -> tuple[str, dict[str, list[str]]]:
    """Returns this host's IPv4 address on the route to a server, and the addresses of each of its interfaces with one.

    Raises an OSError if the server does not answer within so many seconds.
    """
    import psutil

    with socket.create_connection((address, port), seconds) as connection:
        source = connection.getsockname()[0]
    addresses_by_name = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    return source, {name: addresses for name, addresses in addresses_by_name.items() if addresses}
