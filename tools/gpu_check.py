"""Checks and times the fused ops on a GPU machine with CUDA's compiler and JAX, without TensorFlow or a network.

    python tools/gpu_check.py                  # builds the library with nvcc, checks every op, times each
    python tools/gpu_check.py --platform=cpu   # checks the CPU's kernels through the same harness; times nothing

The checks call the XLA FFI handlers under JAX and compare with fp64 NumPy (tools/gpu_references.py). Then one program
with every op is called repeatedly, with other allocations in between (tools/gpu_replays.py). A time is the
median difference between a long and a short run of calls, so that it excludes waiting for the device; the inputs are
far larger than the L2 cache. The byte counts assume that a kernel reads each input once, a causal softmax half of it,
and writes each output once. The tool measures a copy in the same way in the same run, and PyTorch's counterpart, if
PyTorch is installed, with CUDA events. Flash attention is timed beside PyTorch's and cuDNN's, in TFLOP/s
(tools/gpu_flash.py). The tool prints csv and exits with 1 if a result is wrong.
"""

import argparse
import csv
import ctypes
import importlib.util
import itertools
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import gpu_flash
import gpu_references as references
import gpu_replays

ROOT = Path(__file__).parent.parent
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
COLUMNS = ["op", "pass", "dtype", "shape", "device", "implementation"]
COLUMNS += ["time_us", "gb_per_s", "share_of_copy", "speedup_over_torch", "tflop_per_s"]


def build(platform: str) -> Path:
    """Compiles the library; messages of the compilers go to stderr."""
    to = ROOT / "build" / "gpu_check"
    command = [ROOT / "tools" / "build_ffi.sh", {"gpu": "cuda", "cpu": "cpu"}[platform], to, jax.ffi.include_dir()]
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)
    return to / "libtftrain_ffi.so"


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


def workspace_bytes(op: str, shapes: list[tuple[int, ...]]) -> int:
    """Returns the bytes of the workspace that the handler takes as its last result; 0 if it takes none."""
    if op not in workspace_functions:
        return 0
    ranks, dims = [len(shape) for shape in shapes], [size for shape in shapes for size in shape]
    arrays = [(ctypes.c_int64 * len(numbers))(*numbers) for numbers in (ranks, dims)]
    return workspace_functions[op](ctypes.c_int64(len(shapes)), *arrays)


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
        if size := workspace_bytes(op, [array.shape for array in inputs]):
            results.append(jax.ShapeDtypeStruct((size,), np.uint8))
        call = jax.ffi.ffi_call(op, results, has_side_effect=has_side_effect, input_output_aliases=aliases)
        return call(*inputs, **attributes)[: len(outputs)]

    return run


def check(seed: int) -> int:
    """Runs every call of the references twice; returns the number of wrong calls."""
    wrong = number = 0
    for call in references.calls(TYPES, seed):
        number += 1
        run = jax.jit(fused(call.op, [(value.shape, dtype) for value, dtype, _ in call.outputs], call.attributes))
        inputs = [jnp.asarray(array) for array in call.inputs]
        first, second = (list(map(np.asarray, run(*inputs))) for _ in range(2))
        problems = []
        for i, (value, _, (relative, absolute)) in enumerate(call.outputs):
            finite, actual = np.isfinite(value), first[i].astype(np.float64)
            with np.errstate(invalid="ignore"):
                error = np.where(finite, np.abs(actual - value), np.where(actual == value, 0, np.inf))
                allowed = np.where(finite, absolute + relative * np.abs(value), 0)
            if not np.all(error <= allowed):
                at = np.unravel_index(np.argmax(error - allowed), error.shape)
                problems.append(f"output {i} at {at} is {first[i][at]}, expected {value[at]}")
            if first[i].tobytes() != second[i].tobytes():
                problems.append(f"output {i} differs between two runs")
        if any(a.tobytes() != np.asarray(b).tobytes() for a, b in zip(call.inputs, inputs, strict=True)):
            problems.append("an input was overwritten")
        if problems:
            wrong += 1
            print(f"WRONG {call.what}: {'; '.join(problems)}", file=sys.stderr)
    print(f"{number - wrong} of {number} calls within tolerance", file=sys.stderr)
    return wrong


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
    call = jax.jit(fused(op, outputs, attributes))
    return median_time(lambda i: call(*sets[i % 2]))


def bytes_of(specs) -> int:
    """Returns the bytes of arrays, given as (shape, dtype)."""
    return sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in specs)


def copy_speed() -> float:
    """Returns the bytes that a copy reads and writes in a second."""
    arrays = [jnp.ones(1 << 28, jnp.float32) * i for i in range(2)]
    copy = jax.jit(jnp.copy)
    return 2 * arrays[0].nbytes / median_time(lambda i: copy(arrays[i % 2]))


def kernels(dtype):
    """Yields op, pass, shape, handler, inputs, outputs, attributes at the shapes of BERT-large."""
    f32, position = jnp.float32, ((2,), jnp.int64)
    dropout = {"drop_below": 6554, "seed": 1, "site": 2}
    for hidden in (768, 1024, 2560):
        x, column, row = ((65536, hidden), dtype), ((hidden,), f32), ((65536,), f32)
        shape = f"65536x{hidden}"
        yield "layer_norm", "forward", shape, "TftrainLayerNorm", [x, column, column], [x, row, row], {"epsilon": 1e-5}
        yield "layer_norm", "backward", shape, "TftrainLayerNormGrad", [x, x, column, row, row], [x, column, column], {}
        yield "rms_norm", "forward", shape, "TftrainRmsNorm", [x, column], [x, row], {"epsilon": 1e-5}
        yield "rms_norm", "backward", shape, "TftrainRmsNormGrad", [x, x, column, row], [x, column], {}
    for keys, batch, causal in (
        (128, 256, False),
        (512, 32, False),
        (512, 32, True),
        (1024, 8, False),
        (1024, 8, True),
        (2048, 2, False),
        (2048, 2, True),
    ):
        p, mask = ((batch, 16, keys, keys), dtype), ((batch, keys), jnp.int32)
        op, shape = "attention_softmax" + "_causal" * causal, f"{batch}x16x{keys}x{keys}"
        attributes = {"scale": 0.125, "causal": causal, **dropout, "first_head": 0, "total_heads": 16, "dropouts": 1}
        yield op, "forward", shape, "TftrainAttentionSoftmax", [p, mask, position], [p, p], attributes
        yield (
            op,
            "backward",
            shape,
            "TftrainAttentionSoftmaxGrad",
            [p, p, position],
            [p, p],
            attributes,
        )
    x, column = ((32768, 4096), dtype), ((4096,), f32)
    for tanh in (0, 1):
        name = "_tanh" if tanh else ""
        attributes = {"approximate": tanh}
        yield "gelu" + name, "forward", "32768x4096", "TftrainGelu", [x, column], [x], attributes
        yield "gelu" + name, "backward", "32768x4096", "TftrainGeluGrad", [x, x, column], [x, column], attributes
        yield "geglu" + name, "forward", "32768x4096", "TftrainGeglu", [x, x, column, column], [x], attributes
        outputs = [x, x, column, column]
        yield (
            "geglu" + name,
            "backward",
            "32768x4096",
            "TftrainGegluGrad",
            [x, x, x, column, column],
            outputs,
            attributes,
        )
    yield "swiglu", "forward", "32768x4096", "TftrainSwiglu", [x, x], [x], {}
    yield "swiglu", "backward", "32768x4096", "TftrainSwigluGrad", [x, x, x], [x, x], {}
    x, column = ((128, 512, 1024), dtype), ((1024,), f32)
    rows = {**dropout, "first_row": 0, "total_rows": 512}
    yield "bias_dropout_add", "forward", "128x512x1024", "TftrainBiasDropoutAdd", [x, column, x, position], [x], rows
    yield (
        "bias_dropout_add",
        "backward",
        "128x512x1024",
        "TftrainBiasDropoutAddGrad",
        [x, column, position],
        [x, column],
        rows,
    )


def time_updates(copy: float, row) -> None:
    """Times LAMB and AdamW in place on the tensors of BERT-large, with the norm of all gradients."""
    layer = [1024 * 1024, 1024] * 4 + [1024] * 4 + [4096 * 1024, 4096, 4096 * 1024, 1024]
    segments = [30522 * 1024, 512 * 1024, 2 * 1024, 1024, 1024, *layer * 24, 1024 * 1024, 1024]
    total, parts = sum(segments), len(segments)
    attributes = {"epsilon": 1e-6, "tensors": 1, "segments": segments}
    flat, each = ((total,), jnp.float32), ((parts,), jnp.float32)
    norms = fused("TftrainSquaredNorms", [((1,), jnp.float32)], {})
    moments = fused("TftrainLambMoments", [each, each, flat, flat], attributes, {3: 2, 4: 3})
    writing = {**attributes, "copied": []}
    weights = fused("TftrainLambWeights", [flat], writing, {5: 0})
    adamw = fused("TftrainAdamW", [flat, flat, flat], writing, {3: 0, 4: 1, 5: 2})
    decays = jnp.full(parts, 0.01, jnp.float32)

    def scalars(norm):
        return jnp.array([1, 1e-3, 0.9, 0.999, -0.1, 1e-3, 5, 500], jnp.float32).at[0].set(1 / jnp.maximum(1, norm))

    def lamb_step(g, m, v, w):
        at = scalars(jnp.sqrt(norms(g)[0][0]))
        weight_squares, update_squares, m, v = moments(at, decays, g, m, v, w)
        rates = 1e-3 * jnp.sqrt(weight_squares / update_squares)
        return m, v, weights(at, decays, rates, m, v, w)[0]

    def adamw_step(g, m, v, w):
        return adamw(scalars(jnp.sqrt(norms(g)[0][0])), decays, g, m, v, w)

    for op, step, per_parameter in (("lamb", lamb_step, 44), ("adamw", adamw_step, 32)):
        g = random_like(*flat, 1)
        state = [random_like(*flat, 2), jnp.square(random_like(*flat, 3)), random_like(*flat, 4)]
        step = jax.jit(step, donate_argnums=(1, 2, 3))

        def run(_, step=step, g=g, state=state):
            state[:] = step(g, *state)
            return state

        row(op, "update", "float32", f"{parts} tensors of {total}", total * per_parameter, median_time(run), copy)


def measure(dtypes: list[str], with_torch: bool) -> None:
    """Prints the table of times."""
    device = jax.devices()[0].device_kind
    table = csv.DictWriter(sys.stdout, COLUMNS)
    table.writeheader()
    gpu_torch = None
    if with_torch and importlib.util.find_spec("torch"):
        import gpu_torch
    copy = copy_speed()

    def row(op, which, dtype, shape, size, seconds, copy):
        torch_seconds = gpu_torch.time_counterpart(op, which, dtype, shape) if gpu_torch else None
        for implementation, taken in (("tftrain", seconds), ("torch", torch_seconds)):
            if taken is None:
                continue
            speed = size / taken
            faster = f"{torch_seconds / taken:.2f}" if torch_seconds else ""
            values = [op, which, dtype, shape, device, implementation, f"{taken * 1e6:.1f}", f"{speed / 1e9:.0f}"]
            table.writerow(dict(zip(COLUMNS, [*values, f"{speed / copy:.3f}", faster, ""], strict=True)))
        sys.stdout.flush()

    def attention_row(form, which, dtype, implementation, seconds):
        tflops = f"{form.operations(which) / seconds / 1e12:.0f}"
        values = [form.op, which, dtype, form.shape, device, implementation, f"{seconds * 1e6:.1f}", "", "", "", tflops]
        table.writerow(dict(zip(COLUMNS, values, strict=True)))
        sys.stdout.flush()

    row("copy", "", "float32", f"{1 << 28}", 2 << 30, (2 << 30) / copy, copy)
    for name in dtypes:
        for op, which, shape, handler, inputs, outputs, attributes in kernels(TYPES[name]):
            seconds = time_call(handler, inputs, outputs, attributes)
            read = bytes_of(inputs) // (2 if attributes.get("causal") else 1)
            row(op, which, name, shape, read + bytes_of(outputs), seconds, copy)
        for form, which, implementation, seconds in gpu_flash.measure(fused, median_time, name, gpu_torch):
            if seconds is not None:
                attention_row(form, which, name, implementation, seconds)
    time_updates(copy, row)


def main() -> int:
    """Builds, checks and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--library", type=Path, help="an existing libtftrain_ffi.so; by default the tool builds one")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="dtypes to time; the checks use all dtypes")
    parser.add_argument("--skip", action="append", default=[], choices=["check", "time", "torch"])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="seed of the checks' inputs")
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", {"gpu": "cuda", "cpu": "cpu"}[arguments.platform])
    jax.config.update("jax_enable_x64", True)  # positions are int64
    library = arguments.library or build(arguments.platform)
    register(library.resolve(), arguments.platform)
    wrong = 0
    if "check" not in arguments.skip:
        print(f"checking with --seed={arguments.seed} on {jax.devices()[0].device_kind}", file=sys.stderr)
        wrong = check(arguments.seed) + gpu_replays.check(fused, arguments.seed)
    if arguments.platform == "gpu" and "time" not in arguments.skip:
        measure(arguments.dtypes.split(","), "torch" not in arguments.skip)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
