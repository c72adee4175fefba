"""What this process runs on: the versions of the packages that decide about a run's numbers, and the host's name."""

import hashlib
import os
import platform
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

PACKAGES = ("tensorflow", "tf-keras", "tensorflow-text", "horovod", "numpy", "safetensors")


def versions() -> dict[str, str | None]:
    """Returns the version of Python and of each of `PACKAGES`; None for a package that is not installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def project(package: Path = Path(__file__).parents[1]) -> str:
    """Returns the version of tftrain, with a digest of its sources: two checkouts may have the same version.

    Args:
        package: the folder of the sources.
    """
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(f"{path.relative_to(package)}\0".encode())
        sources.update(hashlib.sha256(path.read_bytes()).digest())
    try:
        version = metadata.version("tftrain")
    except metadata.PackageNotFoundError:
        version = "not installed"
    return f"{version}, sources {sources.hexdigest()[:8]}"


def host_name(environ: Mapping[str, str] = os.environ) -> str:
    """Returns this host's name, as it was given to the launcher if that passes it on."""
    return environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
