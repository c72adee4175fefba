"""GPUs and memory of this host, as a program may ask before it loads TensorFlow, or without it."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from tftrain.host.units import GB, MIB


def has_driver() -> bool:
    """Whether NVIDIA's driver is loaded."""
    return os.path.exists("/dev/nvidiactl")


def gpu_memory_gb(kind: Literal["free", "total"]) -> list[float]:
    """Returns GB of 1e9 bytes of each GPU of the host, as nvidia-smi reports them; nothing if that is not there."""
    return [int(line) * MIB / GB for line in _nvidia_smi(f"memory.{kind}") if line.isdigit()]


def gpu_names() -> list[str]:
    """Returns the name of each GPU of the host, as nvidia-smi reports them; nothing if that is not there."""
    return _nvidia_smi("name")


def _nvidia_smi(field: str) -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line.strip() for line in done.stdout.splitlines()] if done.returncode == 0 else []


def host_memory_gb() -> float:
    """Returns the memory that this process may use with its host's other processes, in GB of 1e9 bytes.

    It is the host's, or less if a control group (cgroup v2 or v1) limits it, as containers and Slurm do.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    return min(limits) / 1e9
