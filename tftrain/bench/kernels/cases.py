"""The timed cases: for each op and implementation, its passes as functions without arguments.

`fused` is the op. `reference` is its specification in plain TensorFlow, which draws the same masks. `tf_nn` is the
usual code with TensorFlow's own layers, with their numerics. The faster of the last two is TensorFlow's time.
`not_causal` is the fused op on all keys, beside a causal one.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from tftrain.bench.kernels import traffic
from tftrain.host.units import ITEM_BYTES
from tftrain.ops import attention_softmax, dropout, gelu, layer_norm, rms_norm, swiglu
from tftrain.ops.library import library

DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
EPSILON = 1e-12
RATE = 0.1
MASKED = -1e9


class Pass(NamedTuple):
    """One pass of an op.

    Attributes:
        bytes: the least number of bytes that it moves.
        run: implementation -> function that computes the pass once in graph mode; if the function has an attribute
            `prepare`, the worker calls it before, outside the measured time.
    """

    bytes: int
    run: dict[str, Callable[[], Any]]


class Case(NamedTuple):
    """An op at one shape; `passes` by name."""

    shape: str
    passes: dict[str, Pass]


class Functions(NamedTuple):
    """An op's implementations.

    Attributes:
        inputs: tensors that all implementations take.
        by_name: implementation -> forward.
        backward: implementation -> function without arguments, where forward alone has no gradient.
    """

    inputs: list[tf.Tensor]
    by_name: dict[str, Callable[..., tf.Tensor]]
    backward: dict[str, Callable[[], Any]] | None = None


def elementwise_case(op: str, dtype: str, sizes: dict[str, int], working_set: float) -> Case:
    """Makes the case of an op that is not an optimizer.

    Args:
        op: a key of `traffic.TRAFFIC`.
        dtype: fp32, bf16 or fp16, of the tensors and of biases and norm parameters.
        sizes: hidden, heads and seq of the model.
        working_set: the least number of bytes that forward must move; the batch follows from it.

    Returns:
        The case; its inputs are random.
    """
    shape = _sample_shape(op, sizes)
    elements, columns, item = math.prod(shape), shape[-1], ITEM_BYTES[dtype]
    batch = traffic.batch_for(op, elements, columns, item, working_set)
    moved = traffic.TRAFFIC[op](traffic.Extent(batch, elements, columns, item))
    made = MAKERS[op]([batch, *shape], DTYPES[dtype], sizes)
    forward, backward = {}, {}
    for name, function in made.by_name.items():
        compiled = tf.function(function, autograph=False)
        forward[name] = _forward(compiled, made.inputs)
        backward[name] = (made.backward or {}).get(name) or _Backward(compiled, made.inputs)
    passes = {"forward": Pass(moved.forward, forward), "backward": Pass(moved.backward, backward)}
    return Case("x".join(map(str, [batch, *shape])), passes)


def _sample_shape(op, sizes):
    if op.startswith("attention_softmax"):
        return [sizes["heads"], sizes["seq"], sizes["seq"]]
    wide = 4 * sizes["hidden"] if op.startswith(("bias_gelu", "geglu", "swiglu")) else sizes["hidden"]
    return [sizes["seq"], wide]


def _forward(compiled, inputs):
    return lambda: compiled(*inputs)


class _Backward:
    """Backward alone: a `tf.function` under a tape runs as two graphs, and a call runs the second one.

    A persistent tape would need one forward pass only, but it also asks for gradients of all stored activations, and
    feeds zeros for them.
    """

    def __init__(self, compiled, inputs):
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


def _fused_softmax_backward(inputs, sizes, causal):
    """Returns the backward op; `attention`, which has a gradient, would add products."""
    scores, key_mask, step = inputs
    drop = dropout_of(step)

    @tf.function(autograph=False)
    def backward(ddropped, probabilities, position):
        return library().tftrain_attention_softmax_grad(
            ddropped=ddropped,
            probabilities=probabilities,
            position=position,
            **_softmax_attributes(sizes, causal),
            **drop.attributes(),
        )

    probabilities = attention_softmax.attention_softmax(scores, key_mask, _scale(sizes), causal)
    ddropped, position = normal(7, scores.shape, scores.dtype), drop.position()
    return lambda: backward(ddropped, probabilities, position)


def _softmax_attributes(sizes, causal):
    return {"scale": _scale(sizes), "causal": causal, "first_head": 0, "total_heads": sizes["heads"], "dropouts": 1}


def _scale(sizes):
    return 1 / math.sqrt(sizes["hidden"] // sizes["heads"])


def normal(seed: int, shape, dtype: tf.DType) -> tf.Tensor:
    """Returns normal random numbers, drawn in the dtype itself."""
    return tf.random.stateless_normal(shape, [seed, 0], dtype=dtype)


def dropout_of(step: tf.Tensor) -> dropout.Dropout:
    """Returns the dropout of one site, at a step that is an input of the graph."""
    return dropout.Dropout(RATE, site=1, key=dropout.DropoutKey(1, step, tf.zeros([], tf.int64)))


def _layer_norm(shape, dtype, _sizes):
    inputs = [normal(1, shape, dtype), normal(2, shape[-1:], dtype), normal(3, shape[-1:], dtype)]

    layer = tf_keras.layers.LayerNormalization(epsilon=EPSILON, dtype=dtype)
    layer.build(shape)

    def tf_nn(x, gamma, beta):
        layer.gamma, layer.beta = gamma, beta
        return layer(x)

    return Functions(
        inputs,
        {
            "fused": lambda *args: layer_norm.layer_norm(*args, EPSILON),
            "reference": lambda *args: layer_norm.reference_layer_norm(*args, EPSILON),
            "tf_nn": tf_nn,
        },
    )


def _rms_norm(shape, dtype, _sizes):
    def tf_nn(x, gamma):
        return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + EPSILON) * gamma

    return Functions(
        [normal(1, shape, dtype), normal(2, shape[-1:], dtype)],
        {
            "fused": lambda *args: rms_norm.rms_norm(*args, EPSILON),
            "reference": lambda *args: rms_norm.reference_rms_norm(*args, EPSILON),
            "tf_nn": tf_nn,
        },
    )


def _attention_softmax(causal):
    def make(shape, dtype, sizes):
        def fused(causal):
            def forward(scores, key_mask, step):
                drop = dropout_of(step)
                made = library().tftrain_attention_softmax(
                    scores=scores,
                    key_mask=key_mask,
                    position=drop.position(),
                    **_softmax_attributes(sizes, causal),
                    **drop.attributes(),
                )
                return made.dropped[0]

            return forward

        def reference(scores, key_mask, step):
            probabilities = attention_softmax.reference_attention_softmax(scores, key_mask, _scale(sizes), causal)
            return dropout.reference_dropout(probabilities, dropout_of(step))

        def tf_nn(scores, key_mask, _step):
            attended = tf.cast(key_mask > 0, dtype)[:, None, None, :]
            if causal:
                attended *= tf.linalg.band_part(tf.ones(shape[2:], dtype), -1, 0)
            return tf.nn.dropout(tf.nn.softmax(scores * _scale(sizes) + (1 - attended) * MASKED), RATE)

        inputs = [normal(1, shape, dtype), tf.ones([shape[0], shape[-1]], tf.int32), tf.constant(3, tf.int64)]
        fused_names = {"fused": causal} | ({"not_causal": False} if causal else {})
        return Functions(
            inputs,
            {name: fused(form) for name, form in fused_names.items()} | {"reference": reference, "tf_nn": tf_nn},
            {name: _fused_softmax_backward(inputs, sizes, form) for name, form in fused_names.items()},
        )

    return make


def _bias_gelu(form):
    def make(shape, dtype, _sizes):
        return Functions(
            [normal(1, shape, dtype), normal(2, shape[-1:], dtype)],
            {
                "fused": lambda *args: gelu.bias_gelu(*args, form),
                "reference": lambda *args: gelu.reference_bias_gelu(*args, form),
                "tf_nn": lambda x, bias: tf.nn.gelu(tf.nn.bias_add(x, bias), approximate=form == "tanh"),
            },
        )

    return make


def _geglu(form):
    def make(shape, dtype, _sizes):
        def tf_nn(gate, up, gate_bias, up_bias):
            gated = tf.nn.gelu(tf.nn.bias_add(gate, gate_bias), approximate=form == "tanh")
            return gated * tf.nn.bias_add(up, up_bias)

        biases = [normal(3, shape[-1:], dtype), normal(4, shape[-1:], dtype)]
        return Functions(
            [normal(1, shape, dtype), normal(2, shape, dtype), *biases],
            {
                "fused": lambda *args: gelu.geglu(*args, form),
                "reference": lambda *args: gelu.reference_geglu(*args, form),
                "tf_nn": tf_nn,
            },
        )

    return make


def _swiglu(shape, dtype, _sizes):
    return Functions(
        [normal(1, shape, dtype), normal(2, shape, dtype)],
        {
            "fused": swiglu.swiglu,
            "reference": swiglu.reference_swiglu,
            "tf_nn": lambda gate, up: tf.nn.silu(gate) * up,
        },
    )


def _bias_dropout_add(shape, dtype, _sizes):
    inputs = [normal(1, shape, dtype), normal(2, shape[-1:], dtype), normal(3, shape, dtype), tf.constant(3, tf.int64)]
    return Functions(
        inputs,
        {
            "fused": lambda *args: dropout.bias_dropout_add(*args[:3], dropout_of(args[3])),
            "reference": lambda *args: dropout.reference_bias_dropout_add(*args[:3], dropout_of(args[3])),
            "tf_nn": lambda x, bias, residual, _step: residual + tf.nn.dropout(tf.nn.bias_add(x, bias), RATE),
        },
    )


MAKERS: dict[str, Callable[[list[int], tf.DType, dict[str, int]], Functions]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "attention_softmax": _attention_softmax(causal=False),
    "attention_softmax_causal": _attention_softmax(causal=True),
    "bias_gelu_tanh": _bias_gelu("tanh"),
    "bias_gelu_erf": _bias_gelu("erf"),
    "geglu_tanh": _geglu("tanh"),
    "swiglu": _swiglu,
    "bias_dropout_add": _bias_dropout_add,
}
