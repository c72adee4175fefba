"""The fused ops' XLA FFI handlers as functions of JAX arrays, for the parts of tools/gpu_check.py."""

import ctypes
import importlib.util
import itertools
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

ROOT = Path(__file__).parent.parent
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def configure(platform: str) -> None:
    """Makes JAX use the platform, and no other."""
    jax.config.update("jax_platforms", {"gpu": "cuda", "cpu": "cpu"}[platform])
    jax.config.update("jax_enable_x64", True)  # positions are int64


def device() -> str:
    """Returns the name of the device."""
    return jax.devices()[0].device_kind


def torch_counterparts(wanted: bool):
    """Returns the module tools/gpu_torch.py; None if it is not wanted, or PyTorch is not installed."""
    if not wanted or not importlib.util.find_spec("torch"):
        return None
    import gpu_torch

    return gpu_torch


def build(platform: str, to: Path) -> None:
    """Compiles the library into a folder; messages of the compilers go to stderr."""
    command = [ROOT / "tools" / "build_ffi.sh", {"gpu": "cuda", "cpu": "cpu"}[platform], to, jax.ffi.include_dir()]
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)


# The library's functions that return the bytes of an op's workspace; the handlers of the CPU take no workspace.
workspace_functions = {}


def functions(library: ctypes.CDLL) -> dict[str, str]:
    """Returns the C function, without its suffix _host or _cuda, of each op of the library."""
    library.tftrain_ops.restype = ctypes.POINTER(ctypes.c_char_p)
    names = [name.decode() for name in itertools.takewhile(bool, library.tftrain_ops())]
    return dict(zip(names[::2], names[1::2], strict=True))


def register(path: Path, platform: str) -> None:
    """Registers the library's handlers with JAX."""
    library = ctypes.CDLL(str(path))
    suffix, name = {"gpu": ("_cuda", "CUDA"), "cpu": ("_host", "cpu")}[platform]
    for op, symbol in functions(library).items():
        jax.ffi.register_ffi_target(op, jax.ffi.pycapsule(getattr(library, symbol + suffix)), platform=name)
        if platform == "gpu":
            workspace_functions[op] = getattr(library, symbol + "_workspace_bytes")
            workspace_functions[op].restype = ctypes.c_int64


def workspace_bytes(op: str, shapes: list[tuple[int, ...]], atomic: bool) -> int:
    """Returns the bytes of the workspace that the handler takes as its last result; 0 if it takes none.

    `atomic` is the op's attribute of this name, if it has one.
    """
    if op not in workspace_functions:
        return 0
    ranks, dims = [len(shape) for shape in shapes], [size for shape in shapes for size in shape]
    arrays = [(ctypes.c_int64 * len(numbers))(*numbers) for numbers in (ranks, dims)]
    return workspace_functions[op](ctypes.c_int64(len(shapes)), *arrays, ctypes.c_bool(atomic))


def attribute(value):
    """Converts a number or list to the type that handlers take: fp32, bool, int64 or a list of int64."""
    if isinstance(value, list):
        return np.array(value, np.int64)
    if isinstance(value, bool):
        return np.bool_(value)
    return np.float32(value) if isinstance(value, float) else np.int64(value)


def fused(op: str, outputs, attributes, aliases=None, has_side_effect=True):
    """Returns a function of the op's inputs; `outputs` are (shape, dtype)."""
    attributes = {name: attribute(value) for name, value in attributes.items()}

    def run(*inputs):
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs]
        if size := workspace_bytes(op, [array.shape for array in inputs], bool(attributes.get("atomic"))):
            results.append(jax.ShapeDtypeStruct((size,), np.uint8))
        call = jax.ffi.ffi_call(op, results, has_side_effect=has_side_effect, input_output_aliases=aliases)
        return call(*inputs, **attributes)[: len(outputs)]

    return run


# Calls in one program: starting a program takes the host longer than a call takes the device.
IN_PROGRAM = 16


def median_time(run, few: int = 8, many: int = 40, repeats: int = 15) -> float:
    """Returns seconds of one call; `run(i)` dispatches a call and returns its results."""

    def batch(number):
        begin = time.perf_counter()
        for i in range(number):
            last = run(i)
        jax.block_until_ready(last)
        return time.perf_counter() - begin

    batch(few)
    return statistics.median((batch(many) - batch(few)) / (many - few) for _ in range(repeats))


def random_like(shape, dtype, key: int) -> jax.Array:
    """Returns normal numbers; for int32 a mask with nine tenths ones, for int64 a position."""
    if dtype == jnp.int64:
        return jnp.array([3, 64], jnp.int64)
    if dtype == jnp.int32:
        return (jax.random.uniform(jax.random.key(key), shape) < 0.9).astype(jnp.int32)
    return jax.random.normal(jax.random.key(key), shape, dtype)


def time_call(op: str, inputs, outputs, attributes) -> float:
    """Returns seconds of one call, on two sets of inputs in turn; `inputs` and `outputs` are (shape, dtype)."""
    sets = [[random_like(*spec, 10 * i + k) for k, spec in enumerate(inputs)] for i in range(2)]
    return time_in_program(fused(op, outputs, attributes), sets)


def time_in_program(call, sets) -> float:
    """Returns seconds of one call of a fused op, on sets of inputs in turn, within a program of IN_PROGRAM calls."""

    def calls(sets):
        results = [call(*sets[i % len(sets)])[0] for i in range(IN_PROGRAM)]
        return results[-1].ravel()[:1]  # no call is left out: each has a side effect, as XLA is told

    return time_program(calls, sets)


def time_program(calls, *inputs) -> float:
    """Returns the seconds of a function of `inputs`, divided by the IN_PROGRAM calls that it makes."""
    calls = jax.jit(calls)
    return median_time(lambda _: calls(*inputs), few=1, many=4, repeats=9) / IN_PROGRAM
