"""The fused ops in fp64 NumPy, and calls of each with awkward shapes, for tools/gpu_check.py.

Those of flash attention are in tools/gpu_flash_references.py.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

FORWARD = {"float32": (5e-6, 1e-6), "float16": (1e-3, 1e-5), "bfloat16": (8e-3, 1e-5)}
GRADIENT = {"float32": (5e-5, 1e-5), "float16": (2e-3, 1e-4), "bfloat16": (1.6e-2, 1e-3)}


class Call(NamedTuple):
    """One call of an op and its expected results.

    Attributes:
        op: the handler's name.
        inputs: arrays of the types that the op takes.
        attributes: numbers, or lists of integers.
        outputs: for each output the expected array in fp64, the dtype, and the tolerance (relative, absolute).
        what: description of the call, for messages.
    """

    op: str
    inputs: list[np.ndarray]
    attributes: dict[str, Any]
    outputs: list[tuple[np.ndarray, Any, tuple[float, float]]]
    what: str


def calls(types: dict[str, Any], seed: int) -> Iterator[Call]:
    """Yields calls of every op but flash attention, of every pass and dtype.

    Args:
        types: dtypes by name: float32, float16 and bfloat16.
        seed: seed of the inputs.
    """
    random = np.random.default_rng(seed)
    for name, dtype in types.items():
        narrow = [(1, 1), (67, 7), (33, 64), (13, 768), (1000, 1024), (5, 1001), (7, 2560), (3, 8192)]
        long = [(3, 5121), (5, 8193), (700, 10007), (9, 16384)]  # do not fit into a block's registers
        for rows, hidden in narrow + long:
            yield from _layer_norm(random, name, dtype, rows, hidden)
            yield from _rms_norm(random, name, dtype, rows, hidden)
        for batch, heads, queries, keys in [
            (2, 3, 1, 1),
            (2, 2, 17, 17),
            (2, 4, 128, 128),
            (1, 2, 512, 512),
            (2, 1, 5, 2049),
            (2, 1, 3, 8193),
            (2, 1, 300, 10007),
            (1, 2, 2, 16384),
        ]:
            for drop_below in (0, 6656):
                yield from _softmax(random, name, dtype, (batch, heads, queries, keys), drop_below)
        for batch, heads, length in [(2, 3, 1), (2, 2, 17), (2, 4, 128), (1, 2, 257), (1, 2, 512), (2, 1, 1032)]:
            for drop_below in (0, 6656):
                yield from _softmax(random, name, dtype, (batch, heads, length, length), drop_below, causal=True)
        for rows, columns in [(1, 1), (67, 7), (257, 64), (1000, 3072), (5, 1001)]:
            for tanh in (0, 1):
                yield from _gelu(random, name, dtype, rows, columns, tanh)
                yield from _geglu(random, name, dtype, rows, columns, tanh)
            for biased in (False, True):
                yield from _swiglu(random, name, dtype, rows, columns, biased)
        for shape in [(1, 1, 1), (3, 17, 7), (4, 128, 768)]:
            for drop_below in (0, 30000):
                yield from _dropout_add(random, name, dtype, shape, drop_below)
    for sizes in ([1], [5, 70001, 3, 1024, 2], [7] * 700):
        for factor in (0.5, 0.0):
            yield from _updates(random, sizes, factor)


def kept(
    dropout: dict[str, int], position: np.ndarray, samples: int, elements: np.ndarray, per_sample: int, bits: int
) -> np.ndarray:
    """Returns the dropout factors of elements, [samples, *elements.shape]: Philox 4x32-10, see common/philox.h.

    An element takes 16 `bits`, or 8 if it is an attention probability.
    """
    of_count, of_word = 128 // bits, 32 // bits
    counts = -(-per_sample // of_count)
    sample = (int(position[1]) + np.arange(samples)).reshape(-1, *[1] * elements.ndim)
    low = (sample * counts + elements // of_count).astype(np.uint64)
    high = np.uint64(int(position[0]) * 65536 + dropout["site"])
    mask = np.uint64(0xFFFFFFFF)
    c0, c1 = low & mask, low >> np.uint64(32)
    c2, c3 = np.full_like(low, high & mask), np.full_like(low, high >> np.uint64(32))
    key0, key1 = dropout["seed"] & 0xFFFFFFFF, dropout["seed"] >> 32 & 0xFFFFFFFF
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (product1 >> np.uint64(32)) ^ c1 ^ np.uint64(key0), product1 & mask
        c2, c3 = (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(key1), product0 & mask
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    place = np.broadcast_to(elements % of_count, low.shape)
    words = np.stack([c0, c1, c2, c3])
    word = np.take_along_axis(words, (place // of_word)[None], 0)[0]
    draws = (word >> (bits * (place % of_word)).astype(np.uint64)) & np.uint64(2**bits - 1)
    return (draws >= dropout["drop_below"] >> 16 - bits) * 65536 / (65536 - dropout["drop_below"])


def normal(random, dtype, *shape, mean=0.0, deviation=1.0):
    """Returns normal numbers of a dtype; those of 16 bits are rounded from fp32."""
    return (mean + deviation * random.standard_normal(shape)).astype(np.float32).astype(dtype)


def as_fp64(*arrays):
    """Returns the arrays in fp64."""
    return [array.astype(np.float64) for array in arrays]


def _sums(rows, size=1.0):
    return (5e-6, 5e-6 * size * math.sqrt(rows))


def _layer_norm(random, name, dtype, rows, hidden):
    what = f"layer_norm {name} {rows}x{hidden}"
    x, dy = (normal(random, dtype, rows, hidden, mean=mean) for mean in (0.5, 0))
    gamma, beta = normal(random, np.float32, hidden, mean=1), normal(random, np.float32, hidden)
    v, scale, shift, g = as_fp64(x, gamma, beta, dy)
    mean = v.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(v.var(1, keepdims=True) + 1e-5)
    n = (v - mean) * rstd
    statistics = [(mean[:, 0], np.float32, FORWARD["float32"]), (rstd[:, 0], np.float32, FORWARD["float32"])]
    outputs = [(n * scale + shift, dtype, FORWARD[name]), *statistics]
    yield Call("TftrainLayerNorm", [x, gamma, beta], {"epsilon": 1e-5}, outputs, what)
    if hidden == 1:  # its rstd is 316, which makes inputs of 16 bits overflow
        return
    gs = g * scale
    dx = rstd * (gs - gs.mean(1, keepdims=True) - n * (gs * n).mean(1, keepdims=True))
    parameters = [(np.sum(g * n, 0), np.float32, _sums(rows)), (np.sum(g, 0), np.float32, _sums(rows))]
    inputs = [dy, x, gamma, mean[:, 0].astype(np.float32), rstd[:, 0].astype(np.float32)]
    yield Call("TftrainLayerNormGrad", inputs, {}, [(dx, dtype, GRADIENT[name]), *parameters], what + " backward")


def _rms_norm(random, name, dtype, rows, hidden):
    what = f"rms_norm {name} {rows}x{hidden}"
    x, dy = (normal(random, dtype, rows, hidden, mean=mean) for mean in (0.5, 0))
    gamma = normal(random, np.float32, hidden, mean=1)
    v, scale, g = as_fp64(x, gamma, dy)
    rstd = 1 / np.sqrt(np.square(v).mean(1, keepdims=True) + 1e-5)
    n, gs = v * rstd, g * scale
    outputs = [(n * scale, dtype, FORWARD[name]), (rstd[:, 0], np.float32, FORWARD["float32"])]
    yield Call("TftrainRmsNorm", [x, gamma], {"epsilon": 1e-5}, outputs, what)
    if hidden == 1:  # x / |x| is constant but for epsilon: its gradient is all rounding
        return
    dx = rstd * (gs - n * (gs * n).mean(1, keepdims=True))
    outputs = [(dx, dtype, GRADIENT[name]), (np.sum(g * n, 0), np.float32, _sums(rows))]
    inputs = [dy, x, gamma, rstd[:, 0].astype(np.float32)]
    yield Call("TftrainRmsNormGrad", inputs, {}, outputs, what + " backward")


def _softmax(random, name, dtype, shape, drop_below, causal=False):
    batch, heads, queries, keys = shape
    what = f"attention_softmax {name} {shape}{' with dropout' * (drop_below > 0)}{' causal' * causal}"
    dropout = {"drop_below": drop_below, "seed": 1234567890123, "site": 77}
    position = np.array([7, 40], np.int64)
    attributes = {"scale": 0.3, "causal": causal, **dropout, "first_head": 1, "total_heads": heads + 2}
    attributes["dropouts"] = int(drop_below > 0)
    scores, ddropped = normal(random, dtype, *shape, deviation=3), normal(random, dtype, *shape)
    key_mask = (random.random((batch, keys)) < 0.8).astype(np.int32)
    key_mask[-1] = 0 if batch > 1 else 1
    attended = np.broadcast_to(key_mask[:, None, None] > 0, (batch, 1, queries, keys))
    s, dd = as_fp64(scores, ddropped)
    if causal:
        behind = np.triu(np.ones((queries, keys), bool), 1)
        attended = attended & ~behind
        scores, ddropped = (np.where(behind, dtype(np.inf), array) for array in (scores, ddropped))  # not read
    s = np.where(attended, np.float64(np.float32(0.3)) * s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    p = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    elements = (heads + 2) * queries * keys
    places = np.arange(queries * keys, (1 + heads) * queries * keys).reshape(heads, queries, keys)
    factors = kept(dropout, position, batch, places, elements, 8)
    dropped = [(p * factors, dtype, FORWARD[name])] if drop_below else []
    yield Call(
        "TftrainAttentionSoftmax", [scores, key_mask, position], attributes, [(p, dtype, FORWARD[name]), *dropped], what
    )
    stored = p.astype(dtype)
    p = stored.astype(np.float64)
    g = dd * factors
    dscores = np.float64(np.float32(0.3)) * p * (g - (p * g).sum(-1, keepdims=True))
    dropped = [(p * factors, dtype, FORWARD[name])] if drop_below else []
    outputs = [(dscores, dtype, GRADIENT[name]), *dropped]
    yield Call("TftrainAttentionSoftmaxGrad", [ddropped, stored, position], attributes, outputs, what + " backward")


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _gelu_of(z, tanh):
    if not tanh:
        below = _erfc(-z * math.sqrt(0.5)) / 2
        return z * below, below + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    scale = 2 * math.sqrt(2 / math.pi)
    below = 1 / (1 + np.exp(-scale * (z + 0.044715 * z**3)))
    return z * below, below + z * below * (1 - below) * scale * (1 + 3 * 0.044715 * z * z)


def _gelu(random, name, dtype, rows, columns, tanh):
    what = f"gelu {'tanh' if tanh else 'erf'} {name} {rows}x{columns}"
    x, dy = normal(random, dtype, rows, columns, deviation=2), normal(random, dtype, rows, columns)
    bias = normal(random, np.float32, columns)
    wide, g, b = as_fp64(x, dy, bias)
    y, slope = _gelu_of(wide + b, tanh)
    yield Call("TftrainGelu", [x, bias], {"approximate": tanh}, [(y, dtype, FORWARD[name])], what)
    yield Call(
        "TftrainGelu", [x], {"approximate": tanh}, [(_gelu_of(wide, tanh)[0], dtype, FORWARD[name])], what + " no bias"
    )
    outputs = [(g * slope, dtype, GRADIENT[name]), ((g * slope).sum(0), np.float32, _sums(rows))]
    yield Call("TftrainGeluGrad", [dy, x, bias], {"approximate": tanh}, outputs, what + " backward")


def _geglu(random, name, dtype, rows, columns, tanh):
    what = f"geglu {'tanh' if tanh else 'erf'} {name} {rows}x{columns}"
    gate, up, dy = (normal(random, dtype, rows, columns) for _ in range(3))
    biases = [normal(random, np.float32, columns) for _ in range(2)]
    z, linear, g, gate_bias, up_bias = as_fp64(gate, up, dy, *biases)
    y, slope = _gelu_of(z + gate_bias, tanh)
    linear += up_bias
    yield Call("TftrainGeglu", [gate, up, *biases], {"approximate": tanh}, [(y * linear, dtype, FORWARD[name])], what)
    dgate, dup = g * linear * slope, g * y
    sums = [(array.sum(0), np.float32, _sums(rows, 4)) for array in (dgate, dup)]
    outputs = [(dgate, dtype, GRADIENT[name]), (dup, dtype, GRADIENT[name]), *sums]
    yield Call("TftrainGegluGrad", [dy, gate, up, *biases], {"approximate": tanh}, outputs, what + " backward")


def _swiglu(random, name, dtype, rows, columns, biased):
    what = f"swiglu {name} {rows}x{columns}" + " with biases" * biased
    gate, up, dy = (normal(random, dtype, rows, columns, deviation=2) for _ in range(3))
    biases = [normal(random, np.float32, columns) for _ in range(2 * biased)]
    z, linear, g, *shifts = as_fp64(gate, up, dy, *biases)
    if biased:
        z, linear = z + shifts[0], linear + shifts[1]
    below = 1 / (1 + np.exp(-z))
    yield Call("TftrainSwiglu", [gate, up, *biases], {}, [(z * below * linear, dtype, FORWARD[name])], what)
    gradients = g * linear * below * (1 + z * (1 - below)), g * z * below
    outputs = [(array, dtype, GRADIENT[name]) for array in gradients]
    outputs += [(array.sum(0), np.float32, _sums(rows, 8)) for array in gradients] if biased else []
    yield Call("TftrainSwigluGrad", [dy, gate, up, *biases], {}, outputs, what + " backward")


FIRST_ROW = 3  # the first row of each sample on a rank, under sequence parallelism


def _dropout_add(random, name, dtype, shape, drop_below):
    samples, rows, hidden = shape
    what = f"bias_dropout_add {name} {shape}" + (" with dropout" if drop_below else "")
    dropout = {"drop_below": drop_below, "seed": -5, "site": 65535}
    position = np.array([3, 1 << 33], np.int64)
    x, residual = normal(random, dtype, *shape), normal(random, dtype, *shape)
    bias = normal(random, np.float32, hidden)
    wide, b, r = as_fp64(x, bias, residual)
    attributes = {**dropout, "first_row": FIRST_ROW, "total_rows": FIRST_ROW + rows + 1}
    elements = FIRST_ROW * hidden + np.arange(rows * hidden).reshape(rows, hidden)
    factors = kept(dropout, position, samples, elements, attributes["total_rows"] * hidden, 16)
    outputs = [((wide + b) * factors + r, dtype, FORWARD[name])]
    yield Call("TftrainBiasDropoutAdd", [x, bias, residual, position], attributes, outputs, what)
    dx = wide * factors
    outputs = [(dx, dtype, GRADIENT[name]), (dx.sum((0, 1)), np.float32, _sums(samples * rows, 2))]
    yield Call("TftrainBiasDropoutAddGrad", [x, bias, position], attributes, outputs, what + " backward")


def _updates(random, sizes, factor):
    """A flat bucket of segments, and norms of separate tensors."""
    what = f"of {len(sizes)} tensors, factor {factor}"
    total = sum(sizes)
    g, m, w = (normal(random, np.float32, total) for _ in range(3))
    v = np.square(normal(random, np.float32, total))
    scalars = np.array([factor, 1e-3, 0.9, 0.999, 0.9 - 1, 1e-3, 5, 500], np.float32)
    decays = np.where(np.arange(len(sizes)) % 3, 0.01, 0).astype(np.float32)
    rates = (1e-3 * (1 + np.arange(len(sizes)))).astype(np.float32)
    attributes = {"epsilon": 1e-6, "tensors": 1, "segments": list(sizes)}
    at, gw, mw, vw, ww = as_fp64(scalars, g, m, v, w)
    split = np.cumsum(sizes)[:-1]
    each = np.repeat(np.arange(len(sizes)), sizes)
    exact, near = (1e-5, 1e-7), (1e-5, 1e-12)

    def squares(array):
        return np.array([np.sum(part**2) for part in np.split(array, split)])

    next_m = mw * at[2] - gw * at[0] * at[4] if factor else mw
    next_v = vw * at[3] + (gw * at[0]) ** 2 * at[5] if factor else vw
    update = next_m * at[6] / (np.sqrt(next_v * at[7]) + 1e-6) + decays[each] * ww
    norms = [(squares(array) if factor else np.zeros(len(sizes)), np.float32, near) for array in (ww, update)]
    state = [(array, np.float32, exact) for array in (next_m, next_v)]
    yield Call(
        "TftrainLambMoments", [scalars, decays, g, m, v, w], attributes, [*norms, *state], "lamb_moments " + what
    )
    old = mw * at[6] / (np.sqrt(vw * at[7]) + 1e-6) + decays[each] * ww
    weights = ww - rates[each] * old if factor else ww
    attributes = {**attributes, "copied": []}
    yield Call(
        "TftrainLambWeights",
        [scalars, decays, rates, m, v, w],
        attributes,
        [(weights, np.float32, exact)],
        "lamb_weights " + what,
    )
    weights = ww - at[1] * update if factor else ww
    outputs = [*state, (weights, np.float32, exact)]
    yield Call("TftrainAdamW", [scalars, decays, g, m, v, w], attributes, outputs, "adamw " + what)
    yield Call(
        "TftrainSquaredNorms", np.split(g, split), {}, [(squares(gw), np.float32, near)], "squared_norms " + what
    )
