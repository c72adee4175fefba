"""Times each op against TensorFlow's composition and against a copy, on two threads: `python -m custom_ops.benchmark`.

Bytes are the least that the pass can move: each input read once, each output written once. The copy is measured between
the others, again and again, because the memory's speed is not the same from one second to the next on a shared machine;
each median is compared with the median of the copies around it.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf

from tftrain.ops import attention_softmax, dropout, lamb, layer_norm

THREADS = 2
COPY_BYTES = 128 << 20
HEADER = "op,pass,dtype,shape,device,implementation,time_us,gb_per_s,share_of_copy,speedup_over_tf"


class Pass(NamedTuple):
    """One direction of one op: the fused function, the composed one, and the bytes that it has to move."""

    op: str
    name: str
    shape: str
    bytes: int
    fused: Callable
    composed: Callable


def copier() -> Callable[[], None]:
    """Returns a function that copies COPY_BYTES from one array to another on all threads."""
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    parts = list(zip(np.array_split(source, THREADS), np.array_split(target, THREADS), strict=True))

    def copy():
        threads = [threading.Thread(target=np.copyto, args=(to, come)) for come, to in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return copy


def seconds(function: Callable) -> float:
    """Times one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(one: Pass, dtype: str, copy: Callable, repeats: int) -> list[str]:
    """Times the fused op, the composition and copies in turn; returns two lines of csv."""
    functions = {"fused": one.fused, "tensorflow": one.composed}
    for function in functions.values():
        function()
        function()
    times = {name: [] for name in functions}
    copies = []
    for _ in range(repeats):
        copies.append(seconds(copy))
        for name, function in functions.items():
            times[name].append(seconds(function))
    copy_speed = 2 * COPY_BYTES / np.median(copies)
    lines = []
    for name in functions:
        median = float(np.median(times[name]))
        speed = one.bytes / median
        speedup = float(np.median(times["tensorflow"])) / median
        lines.append(f"{one.op},{one.name},{dtype},{one.shape},cpu,{name},{median * 1e6:.0f},{speed / 1e9:.2f},"
                     f"{speed / copy_speed:.2f},{speedup:.1f}")  # fmt: skip
    return lines


def with_gradient(function: Callable, inputs: list[tf.Tensor], dy: tf.Tensor) -> Callable:
    """Returns a compiled graph of the forward and backward pass."""

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = function(*inputs)
        return tape.gradient(y, inputs, output_gradients=dy)

    return run


def graph(function: Callable, *inputs) -> Callable:
    """Returns a compiled graph of the forward pass."""
    compiled = tf.function(lambda: function(*inputs))
    return lambda: compiled()


def random(shape: list[int], dtype: str) -> tf.Tensor:
    """Returns random numbers."""
    return tf.cast(tf.random.normal(shape), dtype)


def layer_norm_passes(dtype: str, rows: int, hidden: int):
    """Yields LayerNorm's passes; the backward figure includes the forward pass."""
    x, dy = random([rows, hidden], dtype), random([rows, hidden], dtype)
    gamma, beta = tf.ones([hidden]), tf.zeros([hidden])
    size, shape = rows * hidden * x.dtype.size, f"{rows}x{hidden}"
    fused = lambda x, g, b: layer_norm.layer_norm(x, g, b, 1e-5)  # noqa: E731
    composed = lambda x, g, b: layer_norm.reference_layer_norm(x, g, b, 1e-5)  # noqa: E731
    inputs = [x, gamma, beta]
    yield Pass("layer_norm", "forward", shape, 2 * size, graph(fused, *inputs), graph(composed, *inputs))
    yield Pass("layer_norm", "forward+backward", shape, 5 * size, with_gradient(fused, inputs, dy),
               with_gradient(composed, inputs, dy))  # fmt: skip


def dropout_passes(dtype: str, rows: int, hidden: int):
    """Yields the passes of bias, dropout and residual add."""
    shape = [rows // 128, 128, hidden]
    x, residual, dy = (random(shape, dtype) for _ in range(3))
    bias = tf.zeros([hidden])
    masks = dropout.DropoutMasks(0.1, 1, 2, tf.constant(3, tf.int64), tf.constant(4, tf.int64))
    size = rows * hidden * x.dtype.size
    fused = lambda x, b, r: dropout.bias_dropout_add(x, b, r, masks)  # noqa: E731
    composed = lambda x, b, r: dropout.reference_bias_dropout_add(x, b, r, masks)  # noqa: E731
    inputs = [x, bias, residual]
    name = "x".join(map(str, shape))
    yield Pass("bias_dropout_add", "forward", name, 3 * size, graph(fused, *inputs), graph(composed, *inputs))
    yield Pass("bias_dropout_add", "forward+backward", name, 5 * size, with_gradient(fused, inputs, dy),
               with_gradient(composed, inputs, dy))  # fmt: skip


def softmax_passes(dtype: str, batch: int, heads: int, length: int):
    """Yields the passes of the attention softmax without and with dropout; the latter by its two ops themselves."""
    shape = [batch, heads, length, length]
    scores, dy = random(shape, dtype), random(shape, dtype)
    mask = tf.ones([batch, length], tf.int32)
    masks = dropout.DropoutMasks(0.1, 1, 2, tf.constant(3, tf.int64), tf.constant(4, tf.int64))
    size, name = batch * heads * length * length * scores.dtype.size, "x".join(map(str, shape))
    fused = lambda s: attention_softmax.attention_softmax(s, mask, 0.125)  # noqa: E731
    composed = lambda s: attention_softmax.reference_attention_softmax(s, mask, 0.125)  # noqa: E731
    yield Pass("attention_softmax", "forward", name, 2 * size, graph(fused, scores), graph(composed, scores))
    yield Pass("attention_softmax", "forward+backward", name, 5 * size, with_gradient(fused, [scores], dy),
               with_gradient(composed, [scores], dy))  # fmt: skip

    attributes = {"scale": 0.125, "dropouts": 1, "first_head": 0, "total_heads": heads, **masks.attributes()}
    ops = attention_softmax.library()

    def fused_dropout():
        made = ops.tftrain_attention_softmax(scores=scores, key_mask=mask, position=masks.position(), **attributes)
        return made.probabilities, made.dropped[0]

    def composed_dropout(scores):
        kept = tf.cast(dropout.reference_kept(shape, masks), scores.dtype)
        return attention_softmax.reference_attention_softmax(scores, mask, 0.125) * kept * masks.keep_scale

    yield Pass("attention_softmax_dropout", "forward", name, 3 * size, graph(fused_dropout),
               graph(composed_dropout, scores))  # fmt: skip

    def fused_dropout_both():
        probabilities, _dropped = fused_dropout()
        return ops.tftrain_attention_softmax_grad(
            ddropped=dy, probabilities=probabilities, position=masks.position(), **attributes
        )

    yield Pass("attention_softmax_dropout", "forward+backward", name, 7 * size, graph(fused_dropout_both),
               with_gradient(composed_dropout, [scores], dy))  # fmt: skip


def lamb_passes(tensors: int, size: int):
    """Yields the update of many tensors with the gradients' norm; the composition is that of plain TensorFlow."""
    weights, m, v = ([tf.Variable(tf.random.normal([size])) for _ in range(tensors)] for _ in range(3))
    for variable in v:
        variable.assign(tf.square(variable))
    gradients = [tf.random.normal([size]) for _ in range(tensors)]
    at = lamb.UpdateScalars(0.5, 1e-3, 0.9, 0.999, -0.1, 0.001, 2.0, 50.0)
    decays = [0.01] * tensors

    def fused_lamb():
        norm = tf.sqrt(tf.reduce_sum(lamb.squared_norms(gradients)))
        here = at._replace(gradient_factor=1.0 / tf.maximum(norm, 1.0))
        squares = lamb.lamb_moments(gradients, m, v, weights, here, decays, 1e-6)
        rates = 1e-3 * tf.sqrt(squares.weights) / tf.sqrt(squares.updates)
        lamb.lamb_weights(m, v, weights, rates, here, decays, 1e-6)

    def fused_adamw():
        norm = tf.sqrt(tf.reduce_sum(lamb.squared_norms(gradients)))
        lamb.adamw(gradients, m, v, weights, at._replace(gradient_factor=1.0 / tf.maximum(norm, 1.0)), decays, 1e-6)

    def composed(trust):
        norm = tf.sqrt(tf.reduce_sum([2 * tf.nn.l2_loss(gradient) for gradient in gradients]))
        factor = 1.0 / tf.maximum(norm, 1.0)
        for gradient, w, m_, v_ in zip(gradients, weights, m, v, strict=True):
            g = gradient * factor
            next_m, next_v = m_ * 0.9 + g * 0.1, v_ * 0.999 + tf.square(g) * 0.001
            update = next_m * 2.0 / (tf.sqrt(next_v * 50.0) + 1e-6) + 0.01 * w
            rate = 1e-3 * (tf.norm(w) / tf.norm(update) if trust else 1.0)
            m_.assign(next_m)
            v_.assign(next_v)
            w.assign_sub(rate * update)

    elements, name = tensors * size, f"{tensors}x{size}"
    yield Pass("lamb", "update", name, 44 * elements, graph(fused_lamb), graph(composed, True))
    yield Pass("adamw", "update", name, 32 * elements, graph(fused_adamw), graph(composed, False))


def groups(dtype: str):
    """Yields each op's name and its passes at shapes of BERT-base and BERT-large, well over the cache."""
    scale = 2 if dtype == "bfloat16" else 1
    yield "layer_norm", layer_norm_passes(dtype, 49152 * scale, 768)
    yield "layer_norm", layer_norm_passes(dtype, 32768 * scale, 1024)
    yield "bias_dropout_add", dropout_passes(dtype, 32768 * scale, 768)
    yield "attention_softmax", softmax_passes(dtype, 160 * scale, 12, 128)
    yield "attention_softmax", softmax_passes(dtype, 8 * scale, 16, 512)
    if dtype == "float32":
        yield "lamb", lamb_passes(24, 1 << 20)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=11, help="calls of each function, of which the median counts")
    parser.add_argument("--only", default="", help="only ops whose name begins so")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    copy = copier()
    copy()
    print(HEADER)
    for dtype in ("float32", "bfloat16"):
        for op, passes in groups(dtype):
            if not op.startswith(options.only):
                continue
            for one in passes:
                print(*measure(one, dtype, copy, options.repeats), sep="\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
