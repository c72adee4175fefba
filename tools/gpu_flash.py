"""Part attention of tools/gpu_check.py: flash attention beside the fused attention of cuDNN and of PyTorch, in TFLOP/s.

No key is padding, because not every other implementation takes a mask of keys. PyTorch's `flash` and `cudnn` are those
of `scaled_dot_product_attention`, which has no window. JAX's `cudnn` is the custom call into cuDNN that
`jax.nn.dot_product_attention` makes, the route that a TensorFlow program would take.
"""

import itertools
from collections.abc import Callable

import gpu_handlers
import jax
import jax.numpy as jnp
from gpu_forms import FORMS, Form
from gpu_handlers import IN_PROGRAM, fused, random_like, time_in_program, time_program

COLUMNS = ["pass", "dtype", "batch_x_length_x_heads_x_size", "masks", "tftrain_us", "tftrain_tflops"]
DETERMINISTIC = "backward, deterministic"  # 7 products instead of 5, and no atomic additions
OTHERS = ["jax_cudnn_tflops", "pytorch_flash_tflops", "pytorch_cudnn_tflops"]


def measure(make_page: Callable, dtypes: list[str], with_torch: bool):
    """Times every form and returns the page; for the arguments see `measure` of tools/gpu_fast.py."""
    page = make_page(COLUMNS + OTHERS)
    page.device = gpu_handlers.device()
    torch = gpu_handlers.torch_counterparts(with_torch)
    rows = itertools.product(dtypes, FORMS, ("forward", "backward", DETERMINISTIC))
    rows = (each for each in rows if each[::2] != ("float32", DETERMINISTIC))  # which has no other form
    page.fill((" ".join(map(str, each)), lambda each=each: row(*each, torch)) for each in rows)
    return page


def row(dtype: str, form: Form, which: str, torch) -> list:
    """Returns a row; a cell is empty where an implementation does not take the form."""
    seconds = _tftrain(dtype, form, which)
    every = [seconds]
    if dtype != "float32" and which != DETERMINISTIC:  # which none of the others takes
        every.append(_jax(dtype, form, which) if form.rate == 0 else None)
        if torch and form.window < 0:
            every += [torch.time_attention(backend, which, dtype, form) for backend in ("flash", "cudnn")]
    operations = form.operations(which.split(",")[0])
    speeds = [f"{operations / each / 1e12:.0f}" if each else "" for each in every]
    return [which, dtype, "x".join(map(str, form[:4])), form.words, f"{seconds * 1e6:.1f}", *speeds]


def _inputs(dtype, form):
    """Two sets of query, key, value and gradient of the context, [b, S, heads, head_size]."""
    heads = [form.heads, form.key_heads or form.heads, form.key_heads or form.heads, form.heads]
    specs = [((form.batch, form.length, each, form.head_size), dtype) for each in heads]
    return [[random_like(*spec, 4 * i + k) for k, spec in enumerate(specs)] for i in range(2)]


def _tftrain(dtype, form, which):
    numbers = ((form.batch, form.heads, form.length), jnp.float32)
    attributes = {"scale": form.head_size**-0.5, "causal": form.causal, "drop_below": round(form.rate * 256) * 256}
    attributes |= {"window": form.window, "seed": 1, "site": 2, "first_head": 0, "total_heads": form.heads}
    attributes |= {"sequence_id_lists": 0, "slope_lists": 0}
    sets = _inputs(dtype, form)
    tensors = [(array.shape, dtype) for array in sets[0][:3]]
    forward = fused("TftrainFlashAttention", [tensors[0], numbers], attributes)
    rest = [jnp.ones((form.batch, form.length), jnp.int32), jnp.array([3, 64], jnp.int64)]
    if which == "forward":
        return time_in_program(forward, [[*each[:3], *rest] for each in sets])
    attributes["atomic"] = which == "backward" and dtype != "float32"
    backward = fused("TftrainFlashAttentionGrad", tensors, attributes)
    gradients = [[dcontext, *qkv, *forward(*qkv, *rest), *rest] for *qkv, dcontext in sets]
    return time_in_program(backward, gradients)


def _jax(dtype, form, which):
    window = None if form.window < 0 else (form.window, 0 if form.causal else form.window)

    def attention(query, key, value):
        options = {"is_causal": form.causal, "local_window_size": window, "implementation": "cudnn"}
        return jax.nn.dot_product_attention(query, key, value, **options)

    # Each call takes the last one's result, so that XLA leaves none out.
    def forwards(query, key, value, _):
        for _ in range(IN_PROGRAM):
            query = attention(query, key, value)
        return query

    def backwards(query, key, value, dcontext):
        gradients = jax.vjp(attention, query, key, value)[1]
        for _ in range(IN_PROGRAM):
            dcontext, dkey, dvalue = gradients(dcontext)
        return dcontext, dkey, dvalue

    inputs = _inputs(dtype, form)[0]
    try:
        forward_time = time_program(forwards, *inputs)
        return forward_time if which == "forward" else time_program(backwards, *inputs) - forward_time / IN_PROGRAM
    except (RuntimeError, ValueError, NotImplementedError):  # no cuDNN, or one that does not take the form
        return None
