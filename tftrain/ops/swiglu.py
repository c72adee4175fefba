"""SwiGLU (Shazeer, arXiv 2002.05202) in one pass, in the kernels of GeGLU; see `tftrain.ops.gelu`."""

import tensorflow as tf

from tftrain.ops.gelu import biased, gated_inputs
from tftrain.ops.library import library


def swiglu(
    gate: tf.Tensor, up: tf.Tensor, gate_bias: tf.Tensor | None = None, up_bias: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns silu(gate + gate_bias) * (up + up_bias), where silu(z) = z sigmoid(z).

    For the arguments, the result and the errors, see `tftrain.ops.gelu.geglu`.
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
    """Computes `swiglu` in plain TensorFlow: its specification; float64 too, computed in float64."""
    # For backward, TensorFlow's silu keeps its input alone.
    return tf.cast(tf.nn.silu(biased(gate, gate_bias)) * biased(up, up_bias), gate.dtype)
