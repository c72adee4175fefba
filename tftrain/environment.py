"""The packages whose versions decide about a run's numbers."""

import platform
from importlib import metadata

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
