"""The device of this process as TensorFlow, which each function loads itself, knows it."""

import contextlib
import platform
from collections.abc import Mapping
from pathlib import Path

SELF = Path("/proc/self")


def unused_gpu(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Returns a line for the log if this host has an NVIDIA GPU that TensorFlow does not find, else "".

    It is "" too if CUDA_VISIBLE_DEVICES hides the GPUs on purpose. `root` is the folder of /dev and /proc.
    """
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or gpus():
        return ""
    device_files = [*sorted(root.glob("dev/nvidia[0-9]*")), *sorted(root.glob("proc/driver/nvidia/gpus/*"))]
    if not device_files:
        return ""
    return (
        f"this host has an NVIDIA GPU ({device_files[0]}) that TensorFlow does not find: the run is on the CPU; "
        "`make setup GPU=1` installs what the GPU needs, CUDA_VISIBLE_DEVICES=-1 hides it"
    )


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
    return resident_bytes("VmHWM") / 1e9


def resident_bytes(name: str) -> int:
    """Returns the resident memory of this process: VmRSS now, VmHWM at its peak; `getrusage` has the parent's peak."""
    lines = (SELF / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024
