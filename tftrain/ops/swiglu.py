"""SwiGLU (Shazeer, arXiv 2002.05202) in one pass, in the kernels of GeGLU; see `tftrain.ops.gelu`."""

import tensorflow as tf

from tftrain.ops.gelu import biased, gated_inputs
from tftrain.ops.library import library


def swiglu(
    gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor | None = None, up_bias: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns silu(gate + gate_bias) * (up + up_bias), where silu(z) = z sigmoid(z).

    Args:
        gate: [..., columns], fp32, fp16 or bf16.
        up: like `gate`.
        gate_bias: [columns], fp32, fp16 or bf16, independent of gate's dtype; or None.
        up_bias: like `gate_bias`; None if and only if `gate_bias` is None.

    Returns:
        A tensor like `gate`.

    Raises:
        tf.errors.InvalidArgumentError: see `tftrain.ops.gelu.geglu`.
    """
    gate, up, biases = gated_inputs(gate, up, gate_bias, up_bias)
    return library().tftrain_swiglu(gate=gate, up=up, bias=biases)


@tf.RegisterGradient("TftrainSwiglu")
def _swiglu_gradient(op, dy):
    """Returns the gradients of gate, up and, if there are any, their biases."""
    gate, up, *bias = op.inputs
    made = library().tftrain_swiglu_grad(dy=dy, gate=gate, up=up, bias=bias)
    return [made.dgate, made.dup, *made.dbias]


def reference_swiglu(
    gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor | None = None, up_bias: tf.Tensor | None = None
) -> tf.Tensor:
    """Computes `swiglu` in plain TensorFlow: its specification.

    Args:
        gate, up, gate_bias, up_bias: see `swiglu`; float64 too, computed in float64.

    Returns:
        A tensor like `gate`.
    """
    # For backward, TensorFlow's silu keeps its input alone.
    return tf.cast(tf.nn.silu(biased(gate, gate_bias)) * biased(up, up_bias), gate.dtype)
