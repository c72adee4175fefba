"""Times flash attention beside the fused attention of PyTorch and of cuDNN, for tools/gpu_check.py.

The operations are those of the two matrix products, 4 b heads S^2 head_size in forward and 2.5 times as many in
backward, half of it with a causal mask. No key is padding, because not every other implementation takes a mask of keys.
PyTorch's `flash` and `cudnn` are those of `scaled_dot_product_attention`; JAX's `cudnn` is the custom call into cuDNN
that `jax.nn.dot_product_attention` makes, the route that a TensorFlow program would take.
"""

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Form(NamedTuple):
    """A shape to time: `rate` is that of the dropout."""

    batch: int
    length: int
    heads: int
    head_size: int
    causal: bool
    rate: float

    @property
    def op(self) -> str:
        """The name of the table's rows."""
        return "flash_attention" + "_causal" * self.causal + "_dropout" * (self.rate > 0)

    @property
    def shape(self) -> str:
        """Batch, length, heads and head size, joined by x."""
        return "x".join(map(str, self[:4]))

    def operations(self, which: str) -> float:
        """Returns the floating-point operations of a pass."""
        forward = 4 * self.batch * self.heads * self.length**2 * self.head_size / (2 if self.causal else 1)
        return forward * {"forward": 1, "backward": 2.5}[which]


# 16,384 tokens of 1024 numbers: BERT-large at 512 tokens, longer texts, and wider heads.
FORMS = [
    Form(16384 // length, length, 1024 // head_size, head_size, causal, rate)
    for length, head_size in [(512, 64), (1024, 64), (2048, 64), (8192, 64), (512, 128), (2048, 128)]
    for causal, rate in [(False, 0.0), (True, 0.0), (False, 0.1)]
]


def measure(
    fused: Callable, median_time: Callable, dtype: str, gpu_torch
) -> Iterator[tuple[Form, str, str, float | None]]:
    """Yields form, pass, implementation and seconds; None where an implementation does not take the form.

    Args:
        fused, median_time: those of tools/gpu_check.py.
        dtype: name of the tensors' dtype.
        gpu_torch: the module tools/gpu_torch.py, or None without PyTorch.
    """
    for form in FORMS:
        seconds = {("tftrain", which): taken for which, taken in _tftrain(fused, median_time, dtype, form).items()}
        if dtype != "float32":  # which none of the others takes
            if form.rate == 0:
                seconds |= {("jax cudnn", which): taken for which, taken in _jax(median_time, dtype, form).items()}
            for backend in ("flash", "cudnn") if gpu_torch else ():
                for which in ("forward", "backward"):
                    seconds[f"torch {backend}", which] = gpu_torch.time_attention(backend, which, dtype, *form)
        for (implementation, which), taken in seconds.items():
            yield form, which, implementation, taken


def _inputs(dtype, form):
    """Two sets of query, key, value and gradient of the context, [b, S, heads, head_size]."""
    return [[jax.random.normal(jax.random.key(4 * i + k), form[:4], dtype) for k in range(4)] for i in range(2)]


def _tftrain(fused, median_time, dtype, form):
    tensor, numbers = (form[:4], dtype), ((form.batch, form.heads, form.length), jnp.float32)
    attributes = {"scale": form.head_size**-0.5, "causal": form.causal, "drop_below": round(form.rate * 65536)}
    attributes |= {"window": -1, "seed": 1, "site": 2, "first_head": 0, "total_heads": form.heads}
    attributes |= {"sequence_id_lists": 0, "slope_lists": 0}
    forward = jax.jit(fused("TftrainFlashAttention", [tensor, numbers], attributes))
    backward = jax.jit(fused("TftrainFlashAttentionGrad", [tensor] * 3, attributes))
    rest = [jnp.ones(form[:2], jnp.int32), jnp.array([3, 64], jnp.int64)]
    sets = _inputs(dtype, form)
    gradients = [[dcontext, *qkv, *forward(*qkv, *rest), *rest] for *qkv, dcontext in sets]
    return {
        "forward": median_time(lambda i: forward(*sets[i % 2][:3], *rest)),
        "backward": median_time(lambda i: backward(*gradients[i % 2])),
    }


def _jax(median_time, dtype, form):
    def attention(query, key, value):
        return jax.nn.dot_product_attention(query, key, value, is_causal=form.causal, implementation="cudnn")

    def both(query, key, value, dcontext):
        context, gradients = jax.vjp(attention, query, key, value)
        return context, gradients(dcontext)

    sets = _inputs(dtype, form)
    try:
        forward, both = jax.jit(attention), jax.jit(both)
        forward_time = median_time(lambda i: forward(*sets[i % 2][:3]))
        # A backward pass alone cannot be called: this is the difference of both and forward.
        return {"forward": forward_time, "backward": median_time(lambda i: both(*sets[i % 2])) - forward_time}
    except (RuntimeError, ValueError, NotImplementedError) as error:  # no cuDNN, or one that does not take the shape
        print(f"jax cudnn, {form.shape}: {str(error).splitlines()[0]}", file=sys.stderr)
        return {}
