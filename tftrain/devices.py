"""What this process runs on: the device's name, its peak rate, and the most memory it has held."""

import platform
from pathlib import Path

import tensorflow as tf

# Peak dense TFLOPs by a part of the device's name; the first part that occurs in it counts, so boards with their own
# figures stand before the family. "half" is fp16 and, from A100 on, bf16; "single" is what TensorFlow runs fp32 matrix
# products in: fp32 on V100, TF32 since A100.
PEAKS = (
    ("V100-PCIE", {"half": 112.0, "single": 14.0}),
    ("V100", {"half": 125.0, "single": 15.7}),
    ("A100", {"half": 312.0, "single": 156.0}),
    ("H100 PCIe", {"half": 756.0, "single": 378.0}),
    ("H100 NVL", {"half": 835.5, "single": 417.5}),
    ("H100", {"half": 989.5, "single": 494.5}),
    ("H200 NVL", {"half": 835.5, "single": 417.5}),
    ("H200", {"half": 989.5, "single": 494.5}),
)


def peak_tflops(device_name: str, precision: str) -> float | None:
    """Returns the peak rate of one GPU's dense matrix products.

    From NVIDIA's data sheets of the V100, A100, H100 and H200 Tensor Core GPUs, whose figures with sparsity (A100's
    second figure, H100's and H200's only one) are halved here.

    Args:
        device_name: as the driver gives it, such as "NVIDIA A100-SXM4-80GB".
        precision: fp32, fp16 or bf16.

    Returns:
        1e12 operations a second, or None for a device that is not in the table or lacks the format.
    """
    for part, rates in PEAKS:
        if part in device_name:
            if "V100" in part and precision == "bf16":
                return None
            return rates["single" if precision == "fp32" else "half"]
    return None


def has_gpu() -> bool:
    """Whether this process sees a GPU."""
    return bool(tf.config.get_visible_devices("GPU"))


def device_name() -> str:
    """Returns the name of the first GPU that this process sees, else the processor's."""
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def peak_memory_gb() -> float:
    """Returns the most memory that this process has held so far.

    On a GPU, what TensorFlow's allocator had handed out at its peak; else the resident set of the whole process. Linux
    knows that of the program itself, in KiB; `getrusage` would begin with that of whoever started it.

    Returns:
        GB of 1e9 bytes.
    """
    if tf.config.get_visible_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 1e9
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e9
