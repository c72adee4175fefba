"""Part fast of tools/gpu_check.py: the time of every fused op, beside that of a copy and of PyTorch's counterpart.

A time is the median difference between a long and a short run of programs, so that it excludes waiting for the device.
A program calls an op many times, so that it excludes the host. The inputs are far larger than the L2 cache. The byte
counts assume that a kernel reads each input once, a causal softmax half of it, and writes each output once. A copy is
measured in the same run, PyTorch with CUDA events.
"""

import math
from collections.abc import Callable, Iterator

import gpu_handlers
import jax
import jax.numpy as jnp
from gpu_handlers import TYPES, fused, median_time, random_like, time_call

COLUMNS = ["op", "pass", "dtype", "shape", "us", "gb_per_s", "share_of_copy", "pytorch_us", "pytorch_over_tftrain"]


def measure(make_page: Callable, dtypes: list[str], with_torch: bool):
    """Times every op, then PyTorch's counterparts, which compile for long, and returns the page.

    Args:
        make_page: of columns, see `Page` of tools/gpu_check.py.
        dtypes: names of the dtypes to time.
        with_torch: whether to time PyTorch's counterparts, if PyTorch is installed.
    """
    page = make_page(COLUMNS)
    page.device = gpu_handlers.device()
    copy = copy_speed()
    page.add(["copy", "", "float32", f"{1 << 28}", f"{(2 << 30) / copy * 1e6:.1f}", f"{copy / 1e9:.0f}", "1"])
    rows = {}

    def row(op, which, dtype, shape, size, time):
        seconds = time()
        rows[op, which, dtype, shape] = found = [op, which, dtype, shape]
        found += [f"{seconds * 1e6:.1f}", f"{size / seconds / 1e9:.0f}", f"{size / seconds / copy:.2f}"]
        return found

    page.fill((" ".join(map(str, key)), lambda key=key, rest=rest: row(*key, *rest)) for key, *rest in all_ops(dtypes))
    torch = gpu_handlers.torch_counterparts(with_torch)

    def beside(key):
        seconds = torch.time_counterpart(*key)
        if seconds is not None:
            rows[key] += [f"{seconds * 1e6:.1f}", f"{seconds * 1e6 / float(rows[key][4]):.2f}"]
            page.write()

    page.fill((f"PyTorch {' '.join(key)}", lambda key=key: beside(key)) for key in (rows if torch else ()))
    return page


def all_ops(dtypes: list[str]) -> Iterator[tuple[tuple, int, Callable[[], float]]]:
    """Yields op, pass, dtype and shape; the bytes that it moves; and a function that times it, in seconds."""
    for name in dtypes:
        for op, which, shape, handler, inputs, outputs, attributes in kernels(TYPES[name]):
            size = bytes_of(inputs) // (2 if attributes.get("causal") else 1) + bytes_of(outputs)
            call = handler, inputs, outputs, attributes
            yield (op, which, name, shape), size, lambda call=call: time_call(*call)
    for op, shape, size, run in updates():
        yield (op, "update", "float32", shape), size, lambda run=run: median_time(run)


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
    dropout = {"drop_below": 6656, "seed": 1, "site": 2}
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


def updates():
    """Yields op, shape, bytes and a function to time, of LAMB and AdamW in place on the tensors of BERT-large.

    The norm of all gradients belongs to it.
    """
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

        yield op, f"{parts} tensors of {total}", total * per_parameter, run
