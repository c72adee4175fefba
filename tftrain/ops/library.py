"""The compiled ops, loaded once. If an op is requested by name and cannot run, it raises; it never falls back."""

import ctypes
import functools
from pathlib import Path
from types import ModuleType

import tensorflow as tf
from tensorflow.python.framework import kernels

NAME = "libtftrain_ops.so"


class MissingLibraryError(ImportError):
    """The ops were not built, or were built for another TensorFlow; the message says what to do."""


def candidates() -> list[Path]:
    """Returns the possible paths of the library: in the package, in the set-up's folder, and in Bazel's tests."""
    package = Path(__file__).parent
    checkout = package.parent.parent
    return [package / NAME, checkout / "build" / "custom_ops" / NAME, checkout / "custom_ops" / "tensorflow" / NAME]


@functools.cache
def library() -> ModuleType:
    """Loads the library on the first call and returns a module with one function for each op, as `tftrain_layer_norm`.

    Raises a MissingLibraryError if there is no library, or if TensorFlow can't load it.
    """
    path = next((path for path in candidates() if path.exists()), None)
    how = "build it with `make setup` or `bazel run //custom_ops:install`, or choose the reference implementations"
    if path is None:
        places = ", ".join(str(place) for place in candidates())
        raise MissingLibraryError(f"the fused ops' library {NAME} is in none of {places}; {how}")
    try:
        return tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        raise MissingLibraryError(
            f"TensorFlow {tf.__version__} cannot load {path}, which was built for another TensorFlow perhaps; {how}\n"
            f"{error.message}"
        ) from error


@functools.cache
def counters() -> ctypes.CDLL:
    """Returns the library with its functions `tftrain_add_counter()` and `tftrain_counter_value(number)`."""
    library()
    functions = ctypes.CDLL(str(next(filter(Path.exists, candidates()))))
    functions.tftrain_add_counter.restype = functions.tftrain_counter_value.restype = ctypes.c_int64
    functions.tftrain_counter_value.argtypes = [ctypes.c_int64]
    return functions


def unavailable_reason(gpu: bool) -> str | None:
    """Returns why fused ops cannot run on a GPU, or on the CPU, in a few words; None if they can."""
    try:
        library()
    except MissingLibraryError:
        is_built = any(path.exists() for path in candidates())
        return "TensorFlow cannot load the library of fused ops" if is_built else "the fused ops are not built"
    devices = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op("TftrainLayerNorm").kernel}
    if gpu and "GPU" not in devices:
        return "the fused ops were built without CUDA kernels"
    return None


def require_gpu_kernels(named: str) -> None:
    """Raises MissingLibraryError, with the flags that name fused ops, if the library has no kernels for GPUs."""
    if reason := unavailable_reason(gpu=True):
        how = "build them with `make setup GPU=1`, where a CUDA toolkit is, or leave out"
        raise MissingLibraryError(f"{reason}; {how} {named}")
