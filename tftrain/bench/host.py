"""The host of a measurement: its cores, its cache, its free memory and its load."""

import os
import re
from pathlib import Path

import psutil

from tftrain.host import hardware

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def threads(cpu_threads: int) -> int:
    """Returns `cpu_threads`, or the number of usable cores if that is 0."""
    return cpu_threads or hardware.cores()


def last_level_cache() -> int:
    """Returns the bytes of the largest cache of the first core, 32 MiB if the system does not report it."""
    sizes = [re.fullmatch(r"(\d+)([KMG]?)\n", path.read_text()) for path in CACHES.glob("index*/size")]
    return max((int(size[1]) * UNITS[size[2]] for size in sizes if size), default=32 * 2**20)


def available_memory_gb() -> float:
    """Returns the memory available without swapping in GB of 1e9 bytes."""
    return psutil.virtual_memory().available / 1e9


def load() -> str:
    """Returns the load average in words; a load above this process's own threads disturbs a measurement."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
