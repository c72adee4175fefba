"""Bias and GeLU (Hendrycks and Gimpel, arXiv 1606.08415), GeGLU and SwiGLU (Shazeer, arXiv 2002.05202), in one pass.

The ops add biases in fp32. Only the inputs stay in memory for backward. Backward recomputes the biased sums and the
GeLU from them, which costs less than reading stored results. Gradients of biases are fp32 sums over rows in a fixed
order.
"""

import math

import tensorflow as tf

from tftrain.ops.library import library
from tftrain.ops.tensors import checked, wide_dtype

FORMS = ("erf", "tanh")


def bias_gelu(x: tf.Tensor, bias: tf.Tensor | None, form: str) -> tf.Tensor:
    """Returns gelu(x + bias).

    Args:
        x: [..., columns], fp32, fp16 or bf16.
        bias: [columns], fp32, fp16 or bf16, independent of x's dtype; or None.
        form: "erf", exact: z Phi(z); or "tanh", the approximation z sigmoid(2 sqrt(2 / pi) (z + 0.044715 z^3)).

    Returns:
        A tensor like `x`.

    Raises:
        tf.errors.InvalidArgumentError: a shape, dtype or the form is not as above (ValueError for a shape while a graph
            is built).
    """
    x, biases = checked("x", x), [] if bias is None else [checked("bias", bias)]
    return library().tftrain_gelu(x=x, bias=biases, approximate=_approximate(form))


def geglu(
    gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor | None, up_bias: tf.Tensor | None, form: str
) -> tf.Tensor:
    """Returns gelu(gate + gate_bias) * (up + up_bias).

    Args:
        gate, up: [..., columns], both fp32, fp16 or bf16; so is the result.
        gate_bias, up_bias: [columns], both fp32, fp16 or bf16, independent of gate's dtype; or both None.
        form: see `bias_gelu`, also for the errors.
    """
    gate, up, biases = _gated_inputs(gate, up, gate_bias, up_bias)
    return library().tftrain_geglu(gate=gate, up=up, bias=biases, approximate=_approximate(form))


def swiglu(
    gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor | None = None, up_bias: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns silu(gate + gate_bias) * (up + up_bias), where silu(z) = z sigmoid(z).

    For the arguments, the result and the errors, see `geglu`.
    """
    gate, up, biases = _gated_inputs(gate, up, gate_bias, up_bias)
    return library().tftrain_swiglu(gate=gate, up=up, bias=biases)


def _gated_inputs(
    gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor | None, up_bias: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Returns the inputs of a gated unit's op: gate, up, and none or two biases; see `geglu`.

    Raises a tf.errors.InvalidArgumentError if a dtype is not as described there, or if only one of the biases is given.
    """
    gate = checked("gate", gate)
    up = checked("up", up, gate.dtype, "as gate")
    if (gate_bias is None) != (up_bias is None):
        other, missing = ("gate_bias", "up_bias") if up_bias is None else ("up_bias", "gate_bias")
        raise tf.errors.InvalidArgumentError(None, None, f"{missing} is None and {other} is not: give both, or neither")
    if gate_bias is None:
        return gate, up, []
    gate_bias = checked("gate_bias", gate_bias)
    return gate, up, [gate_bias, checked("up_bias", up_bias, gate_bias.dtype, "as gate_bias")]


def _approximate(form: str) -> int:
    if form not in FORMS:
        raise tf.errors.InvalidArgumentError(None, None, f"form is {form!r}, expected one of {', '.join(FORMS)}")
    return int(form == "tanh")


def _gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor]:
    """Returns the gradients of x, or of gate and up, and of the biases, if there are any."""
    names = ["x"] if op.type == "TftrainGelu" else ["gate", "up"]
    inputs = dict(zip(names, op.inputs, strict=False))
    attributes = {} if op.type == "TftrainSwiglu" else {"approximate": op.get_attr("approximate")}
    function = getattr(library(), f"tftrain_{op.type.removeprefix('Tftrain').lower()}_grad")
    gradients = function(dy=dy, **inputs, bias=op.inputs[len(names) :], **attributes)
    return [*(getattr(gradients, f"d{name}") for name in names), *gradients.dbias]


for _type in ("TftrainGelu", "TftrainGeglu", "TftrainSwiglu"):
    tf.RegisterGradient(_type)(_gradient)


def reference_bias_gelu(x: tf.Tensor, bias: tf.Tensor | None, form: str) -> tf.Tensor:
    """Computes `bias_gelu` in plain TensorFlow: its specification; float64 too, computed in float64."""
    return tf.cast(_reference_gelu(_biased(x, bias), form), x.dtype)


def reference_geglu(
    gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor | None, up_bias: tf.Tensor | None, form: str
) -> tf.Tensor:
    """Computes `geglu` in plain TensorFlow: its specification; float64 too, computed in float64."""
    return tf.cast(_reference_gelu(_biased(gate, gate_bias), form) * _biased(up, up_bias), gate.dtype)


def reference_swiglu(
    gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor | None = None, up_bias: tf.Tensor | None = None
) -> tf.Tensor:
    """Computes `swiglu` in plain TensorFlow: its specification; float64 too, computed in float64."""
    # For backward, TensorFlow's silu keeps its input alone.
    return tf.cast(tf.nn.silu(_biased(gate, gate_bias)) * _biased(up, up_bias), gate.dtype)


def _biased(x: tf.Tensor, bias: tf.Tensor | None) -> tf.Tensor:
    """Returns x + bias, or x, in fp32, or in float64 if x is."""
    wide = wide_dtype(x.dtype)
    return tf.cast(x, wide) if bias is None else tf.cast(x, wide) + tf.cast(bias, wide)


def _reference_gelu(z: tf.Tensor, form: str) -> tf.Tensor:
    if form == "erf":
        return 0.5 * z * (1 + tf.math.erf(z * math.sqrt(0.5)))
    scale = 2 * math.sqrt(2 / math.pi)
    return z * tf.sigmoid(z * (scale + scale * 0.044715 * tf.square(z)))
