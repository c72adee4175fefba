"""The timed cases: for each op and implementation, its passes as functions without arguments.

`fused` is the op. `reference` is its specification in plain TensorFlow, which draws the same masks. `tf_nn` is the
usual code with TensorFlow's own layers, with their numerics. The faster of the last two is TensorFlow's time.
`not_causal` is the fused op on all keys, beside a causal one.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from tftrain.bench.kernels import traffic
from tftrain.host.units import DTYPES, ITEM_BYTES
from tftrain.ops import attention_softmax, dropout, gelu, layer_norm
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.library import library

EPSILON = 1e-12
RATE = 0.1
MASKED = -1e9


class Pass(NamedTuple):
    """One pass of an op."""

    bytes: int  # the least number of bytes that it moves
    # Implementation -> function that computes the pass once in graph mode; if the function has an attribute `prepare`,
    # the worker calls it before, outside the measured time.
    run: dict[str, Callable[[], Any]]


class Case(NamedTuple):
    """An op at one shape; `passes` by name."""

    shape: str
    passes: dict[str, Pass]


class Op(NamedTuple):
    """An op's implementations, functions of the same arguments.

    `arguments` has a letter for each: t is a tensor of the case's shape, v a vector of its last axis, m an int32 mask
    of its first and last axis, and s the number of a step.
    """

    arguments: str
    by_name: dict[str, Callable[..., tf.Tensor]]


def normal(seed: int, shape: Sequence[int], dtype: tf.DType | str) -> tf.Tensor:
    """Returns normal random numbers, drawn in the dtype itself."""
    return tf.random.stateless_normal(shape, [seed, 0], dtype=dtype)


def dropout_of(step: tf.Tensor) -> dropout.Dropout:
    """Returns the dropout of one site, at a step that is an input of the graph."""
    return dropout.Dropout(RATE, site=1, key=dropout.DropoutKey(1, step, tf.zeros([], tf.int64)))


def _op(arguments: str, fused: Callable, reference: Callable, tf_nn: Callable, **settings: Any) -> Op:
    """Returns an op; the first two implementations take further `settings`."""
    ours = {"fused": partial(fused, **settings), "reference": partial(reference, **settings)}
    return Op(arguments, {**ours, "tf_nn": tf_nn})


def _layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    """What Keras' LayerNormalization computes with an epsilon as small as BERT's."""
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)


def _rms_norm(x: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + EPSILON) * gamma


def _bias_gelu(x: tf.Tensor, bias: tf.Tensor, form: str) -> tf.Tensor:
    return tf.nn.gelu(tf.nn.bias_add(x, bias), approximate=form == "tanh")


def _geglu(gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor, up_bias: tf.Tensor) -> tf.Tensor:
    return _bias_gelu(gate, gate_bias, "tanh") * tf.nn.bias_add(up, up_bias)


OPS = {
    "layer_norm": _op("tvv", layer_norm.layer_norm, layer_norm.reference_layer_norm, _layer_norm, epsilon=EPSILON),
    "rms_norm": _op("tv", layer_norm.rms_norm, layer_norm.reference_rms_norm, _rms_norm, epsilon=EPSILON),
    **{
        f"bias_gelu_{form}": _op(
            "tv", gelu.bias_gelu, gelu.reference_bias_gelu, partial(_bias_gelu, form=form), form=form
        )
        for form in gelu.FORMS
    },
    "geglu_tanh": _op("ttvv", gelu.geglu, gelu.reference_geglu, _geglu, form="tanh"),
    "swiglu": _op("tt", gelu.swiglu, gelu.reference_swiglu, lambda gate, up: tf.nn.silu(gate) * up),
    "bias_dropout_add": _op(
        "tvts",
        lambda x, bias, residual, step: dropout.bias_dropout_add(x, bias, residual, dropout_of(step)),
        lambda x, bias, residual, step: dropout.reference_bias_dropout_add(x, bias, residual, dropout_of(step)),
        lambda x, bias, residual, step: residual + tf.nn.dropout(tf.nn.bias_add(x, bias), RATE),
    ),
}


def _softmax(sizes: dict[str, int], causal: bool) -> Op:
    """Returns the attention softmax with its dropout; `attention`, which has a gradient too, would add products."""
    heads = sizes["heads"]
    scale = 1 / math.sqrt(sizes["hidden"] // heads)

    def fused(causal: bool) -> Callable[..., tf.Tensor]:
        @tf.custom_gradient
        def forward(scores: tf.Tensor, key_mask: tf.Tensor, step: tf.Tensor) -> tuple:
            drop = dropout_of(step)
            attributes = {"scale": scale, "causal": causal, "first_head": 0, "total_heads": heads, "dropouts": 1}
            arguments = {"position": drop.position(), **attributes, **drop.attributes()}
            outputs = library().tftrain_attention_softmax(scores=scores, key_mask=key_mask, **arguments)

            def gradient(ddropped: tf.Tensor) -> tuple:
                again = library().tftrain_attention_softmax_grad(
                    ddropped=ddropped, probabilities=outputs.probabilities, **arguments
                )
                return again.dscores, None, None

            return outputs.dropped[0], gradient

        return forward

    def reference(scores: tf.Tensor, key_mask: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        probabilities = attention_softmax.reference_attention_softmax(scores, AttentionMask(key_mask, causal), scale)
        return dropout.reference_dropout(probabilities, dropout_of(step))

    def tf_nn(scores: tf.Tensor, key_mask: tf.Tensor, _step: tf.Tensor) -> tf.Tensor:
        attended = tf.cast(key_mask > 0, scores.dtype)[:, None, None, :]
        if causal:
            attended *= tf.linalg.band_part(tf.ones(scores.shape[2:], scores.dtype), -1, 0)
        return tf.nn.dropout(tf.nn.softmax(scores * scale + (1 - attended) * MASKED), RATE)

    by_name = {"fused": fused(causal), **({"not_causal": fused(False)} if causal else {})}
    return Op("tms", {**by_name, "reference": reference, "tf_nn": tf_nn})


def elementwise_case(op: str, dtype: str, sizes: dict[str, int], working_set: float) -> Case:
    """Returns the case of an op of `traffic.TRAFFIC`, with random inputs in fp32, bf16 or fp16.

    `sizes` has hidden, heads and seq of the model. Forward must move at least `working_set` bytes; the batch follows
    from that.
    """
    shape = [sizes["seq"], (4 if op.startswith(("bias_gelu", "geglu", "swiglu")) else 1) * sizes["hidden"]]
    if op.startswith("attention_softmax"):
        shape = [sizes["heads"], sizes["seq"], sizes["seq"]]
    elements, columns, item = math.prod(shape), shape[-1], ITEM_BYTES[dtype]
    batch = traffic.batch_for(op, elements, columns, item, working_set)
    extent, moved = (batch, elements, columns, item), traffic.TRAFFIC[op]
    case = _softmax(sizes, op.endswith("causal")) if op.startswith("attention_softmax") else OPS[op]
    inputs = _inputs(case.arguments, [batch, *shape], DTYPES[dtype])
    compiled = {name: tf.function(function, autograph=False) for name, function in case.by_name.items()}
    forward = {name: partial(function, *inputs) for name, function in compiled.items()}
    backward = {name: _Backward(function, inputs) for name, function in compiled.items()}
    passes = {
        "forward": Pass(moved.forward.bytes(*extent), forward),
        "backward": Pass(moved.backward.bytes(*extent), backward),
    }
    return Case("x".join(map(str, [batch, *shape])), passes)


def _inputs(arguments: str, shape: Sequence[int], dtype: str) -> list[tf.Tensor]:
    """Returns a value for each argument of an `Op`."""
    fixed = {"m": tf.ones([shape[0], shape[-1]], tf.int32), "s": tf.constant(3, tf.int64)}
    shapes = {"t": shape, "v": shape[-1:]}
    return [
        fixed[letter] if letter in fixed else normal(seed, shapes[letter], dtype)
        for seed, letter in enumerate(arguments, start=1)
    ]


class _Backward:
    """Backward alone: a `tf.function` under a tape runs as two graphs, and a call runs the second one.

    A persistent tape would need one forward pass only, but it also asks for gradients of all stored activations, and
    feeds zeros for them.
    """

    def __init__(self, compiled: Callable[..., tf.Tensor], inputs: Sequence[tf.Tensor]):
        self._compiled, self._inputs, self._dy = compiled, inputs, None
        self._floats = [tensor for tensor in inputs if tensor.dtype.is_floating]

    def prepare(self) -> None:
        """Runs forward; the worker calls it before each call."""
        with tf.GradientTape() as self._tape:
            self._tape.watch(self._floats)
            self._y = self._compiled(*self._inputs)
        if self._dy is None:
            self._dy = normal(7, self._y.shape, self._y.dtype)

    def __call__(self):
        gradients = self._tape.gradient(self._y, self._floats, self._dy)
        self._tape = self._y = None  # else the stored activations would stay in memory while other functions run
        return gradients
