"""The device of this process: whether there is a GPU, its name, its memory.

TensorFlow is imported only by the functions that need it, so that a program may ask `has_driver` before it loads.
"""

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tftrain.host.units import GB, MIB


def has_driver() -> bool:
    """Whether NVIDIA's driver is loaded; needs no TensorFlow."""
    return os.path.exists("/dev/nvidiactl")


def unused_gpu(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Returns a line for the log if this host has an NVIDIA GPU that TensorFlow does not find, else "".

    CUDA_VISIBLE_DEVICES may hide the GPUs on purpose. `root` is the folder of /dev and /proc.
    """
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or gpus():
        return ""
    found = [*sorted(root.glob("dev/nvidia[0-9]*")), *sorted(root.glob("proc/driver/nvidia/gpus/*"))]
    if not found:
        return ""
    return (
        f"this host has an NVIDIA GPU ({found[0]}) that TensorFlow does not find: the run is on the CPU; "
        "`make setup GPU=1` installs what the GPU needs, CUDA_VISIBLE_DEVICES=-1 hides it"
    )


def gpu_memory_gb(kind: Literal["free", "total"]) -> list[float]:
    """Returns GB of 1e9 bytes of each GPU of the host, as nvidia-smi reports them; nothing if that is not there.

    It needs no TensorFlow.
    """
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


def gpus() -> list:
    """Returns the GPUs that TensorFlow finds, whether visible to this process or not; it initializes none of them."""
    import tensorflow as tf

    return tf.config.list_physical_devices("GPU")


def has_gpu() -> bool:
    """Whether a GPU is visible to this process."""
    import tensorflow as tf

    return bool(tf.config.get_visible_devices("GPU"))


def device_name() -> str:
    """Returns the name of the first visible GPU, else of the processor."""
    import tensorflow as tf

    if visible := tf.config.get_visible_devices("GPU"):
        return tf.config.experimental.get_device_details(visible[0]).get("device_name", "GPU")
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def peak_memory_gb() -> float:
    """Returns the largest memory use of this process so far, in GB of 1e9 bytes.

    On a GPU it is the peak of TensorFlow's allocator, else the peak resident set from /proc/self/status. `getrusage`
    would start with the peak of the parent process.
    """
    if has_gpu():
        import tensorflow as tf

        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 1e9
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e9
