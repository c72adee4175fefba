"""Flash attention in fp64 NumPy, and calls with awkward shapes, masks and shared keys, for tools/gpu_check.py."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gpu_references import Call, as_fp64, kept, normal


class Form(NamedTuple):
    """Shape, masks and dropout of a call of flash attention; in a batch of several, the last sample has no key."""

    batch: int
    length: int
    heads: int
    head_size: int
    causal: bool = False
    sequence_ids: bool = False
    slopes: bool = False
    padding: bool = True
    drop_below: int = 6656
    window: int = -1
    key_heads: int = 0  # that share keys and values; 0: as many as heads


# Every head size of the kernels and some between them, lengths that are multiples of tiles, of 8 or of nothing.
FORMS = [
    Form(2, 1, 3, 64),
    Form(2, 17, 2, 32, causal=True, slopes=True),
    Form(2, 128, 2, 64),
    Form(1, 512, 2, 64, padding=False, drop_below=0),
    Form(1, 512, 2, 64, causal=True, padding=False),
    Form(2, 257, 2, 64, causal=True, sequence_ids=True),
    Form(1, 1032, 1, 64, sequence_ids=True),
    Form(1, 1032, 1, 128, causal=True, padding=False),
    Form(2, 257, 1, 80, slopes=True),
    Form(2, 128, 2, 96, causal=True, sequence_ids=True, slopes=True),
    Form(2, 257, 1, 128, drop_below=0),
    Form(1, 200, 2, 8),
    Form(1, 72, 1, 136, causal=True),
    Form(2, 130, 1, 256),
    Form(1, 1032, 2, 64, padding=False, window=64),
    Form(2, 257, 1, 64, causal=True, sequence_ids=True, window=40),
    Form(2, 257, 4, 64, key_heads=1),
    Form(1, 512, 8, 128, causal=True, padding=False, key_heads=2),
    Form(1, 520, 6, 64, causal=True, sequence_ids=True, slopes=True, window=100, key_heads=3),
]
# Weights are rounded before the products, so an error is relative to the sum of magnitudes.
UNIT = {"float32": 4e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def calls(types: dict[str, Any], seed: int) -> Iterator[Call]:
    """Yields calls of both passes and every dtype; see `calls` of tools/gpu_references.py."""
    random = np.random.default_rng(seed)
    for name, dtype in types.items():
        for form in FORMS:
            yield from _call(random, name, dtype, form)


def _call(random, name, dtype, form):
    batch, length, heads, size = form.batch, form.length, form.heads, form.head_size
    masks = [mask for mask in ("causal", "sequence_ids", "slopes", "padding") if getattr(form, mask)]
    what = f"flash_attention {name} {batch}x{length}x{heads}x{size} {' '.join(masks)} drop_below {form.drop_below}"
    what += f" window {form.window}" * (form.window >= 0) + f" key_heads {form.key_heads}" * (form.key_heads > 0)
    shared = form.key_heads or heads
    scale, position = 1 / math.sqrt(size), np.array([7, 40], np.int64)
    dropout = {"drop_below": form.drop_below, "seed": 1234567890123, "site": 77}
    attributes = {"scale": scale, "causal": form.causal, **dropout, "first_head": 1, "total_heads": heads + 2}
    attributes |= {"window": form.window, "sequence_id_lists": int(form.sequence_ids), "slope_lists": int(form.slopes)}
    tensors = [normal(random, dtype, batch, length, each, size) for each in (heads, shared, shared, heads)]
    q, k, v, dcontext = (array.transpose(0, 2, 1, 3) for array in as_fp64(*tensors))  # [b, heads, S, size]
    k, v = (array.repeat(heads // shared, 1) for array in (k, v))
    key_mask = np.ones((batch, length), np.int32)
    if form.padding:
        key_mask = (random.random((batch, length)) < 0.8).astype(np.int32)
        key_mask[:, 3 * length // 4 :] = 0
        key_mask[-1] = 0 if batch > 1 else key_mask[-1]
    sequence_ids = np.sort(random.integers(-1, 5, (batch, length))).astype(np.int32)
    slopes = (0.5 ** np.arange(5, heads + 5)).astype(np.float32)
    places = np.arange(length)
    attended = np.broadcast_to(key_mask[:, None, None] > 0, (batch, 1, length, length))
    if form.causal:
        attended = attended & (places <= places[:, None])
    if form.window >= 0:
        attended = attended & (abs(places - places[:, None]) <= form.window)
    if form.sequence_ids:
        attended = attended & (sequence_ids[:, None, :, None] == sequence_ids[:, None, None])
    s = np.float64(np.float32(scale)) * (q @ k.transpose(0, 1, 3, 2))
    if form.slopes:
        s = s + slopes.astype(np.float64)[:, None, None] * (places - places[:, None])
    s = np.where(attended, s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    sums = e.sum(-1, keepdims=True)
    p = e / np.maximum(sums, 1e-300)
    elements = np.arange(length * length, (1 + heads) * length * length).reshape(heads, length, length)
    factors = kept(dropout, position, batch, elements, (heads + 2) * length * length, 8)
    context = (p * factors) @ v
    with np.errstate(divide="ignore"):
        log_sum_exp = (top + np.log(sums))[..., 0]
    unit, lists = UNIT[name], [*[sequence_ids] * form.sequence_ids, *[slopes] * form.slopes]

    def as_stored(array):
        return array.transpose(0, 2, 1, 3)

    outputs = [(as_stored(context), dtype, (unit, unit)), (log_sum_exp, np.float32, (1e-6, 5e-6))]
    inputs = [*tensors[:3], key_mask, position, *lists]
    yield Call("TftrainFlashAttention", inputs, attributes, outputs, what)
    stored = as_stored(context).astype(np.float32).astype(dtype)
    g = factors * (dcontext @ v.transpose(0, 1, 3, 2))
    dscores = np.float64(np.float32(scale)) * p * (g - (p * g).sum(-1, keepdims=True))
    gradients = [dscores @ k, dscores.transpose(0, 1, 3, 2) @ q, (p * factors).transpose(0, 1, 3, 2) @ dcontext]
    for i in (1, 2):  # The gradient of a shared key is the sum over the heads that share it.
        gradients[i] = gradients[i].reshape(batch, shared, heads // shared, length, size).sum(2)
    outputs = [(as_stored(array), dtype, (2 * unit, 6 * unit)) for array in gradients]
    inputs = [tensors[3], *tensors[:3], stored, log_sum_exp.astype(np.float32), key_mask, position, *lists]
    for atomic in (False, True)[: 1 if name == "float32" else 2]:
        backward = f"{what} backward{' atomic' * atomic}"
        yield Call("TftrainFlashAttentionGrad", inputs, {**attributes, "atomic": atomic}, outputs, backward)
