"""GPUs, cores and memory of this host, as a program may ask before it loads TensorFlow, or without it."""

import contextlib
import ctypes
import math
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tftrain.host.units import GB, MIB

LEAST_ADDRESSES, LEAST_THREADS = 32 * GB, 100


def has_driver() -> bool:
    """Whether NVIDIA's driver is loaded."""
    return os.path.exists("/dev/nvidiactl")


def cuda_version() -> tuple[int, int] | None:
    """Returns the newest CUDA version that NVIDIA's driver supports, such as (12, 4); None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)


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
    """Returns the memory that this process and the other processes of its host may use, in GB of 1e9 bytes.

    It is the host's memory, or the least limit of the process's control group and of the groups above it (cgroup v2 or
    v1), as containers, Slurm and systemd set them.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits) / GB


def cores() -> int:
    """Returns the cores that this process may use: those it is bound to, or fewer if control groups give it less time.

    A quota of 2.5 cores counts as 3.
    """
    return math.ceil(min(len(os.sched_getaffinity(0)), core_quota()))


def core_quota() -> float:
    """Returns how many cores' time the control groups of this process give it; infinity without a limit."""
    quotas = [math.inf]
    for folder in control_groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()  # "max 100000" without a limit
            quotas.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            quotas.append(quota / period if quota > 0 else math.inf)
    return min(quotas)


def tight_limits() -> list[str]:
    """Returns a line on each limit of this process that ends TensorFlow by a signal, without a reason, if it is met."""
    lines, (memory, _) = [], resource.getrlimit(resource.RLIMIT_AS)
    if memory != resource.RLIM_INFINITY and memory < LEAST_ADDRESSES:
        lines.append(
            f"the address space of a process is limited to {memory / GB:.1f} GB (ulimit -v): TensorFlow reserves "
            "several GB more than it uses, and ends without a reason where that fails"
        )
    limits = {"ulimit -u": resource.getrlimit(resource.RLIMIT_NPROC)[0]} if os.getuid() else {}
    for folder in control_groups("pids"):
        with contextlib.suppress(OSError, ValueError):
            limits[str(folder / "pids.max")] = int((folder / "pids.max").read_text())
    lines += [
        f"at most {most} threads and processes ({name}): a rank has about {LEAST_THREADS}, and ends without a reason"
        for name, most in limits.items()
        if 0 <= most < LEAST_THREADS
    ]
    return lines


def control_groups(controller: str, proc: Path = Path("/proc/self")) -> Iterator[Path]:
    """Yields the folders of this process's control groups, of v2 and of a controller of v1, each up to the root.

    In a container, the folders above its own that it does not see are left out.
    """
    with contextlib.suppress(OSError, ValueError):
        groups = {}
        for line in (proc / "cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            groups |= dict.fromkeys(names.split(","), path)  # The name of v2 is empty.
        for line in (proc / "mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            root, mounted = (word.encode().decode("unicode_escape") for word in before.split()[3:5])
            kind, _, options = after.split(" ", 2)
            name = {"cgroup2": "", "cgroup": controller}.get(kind)
            if name not in groups or (name and name not in options.split(",")):
                continue
            inside = os.path.relpath(groups[name], root)
            own = Path(mounted, "" if inside.startswith("..") else inside)
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(mounted))
