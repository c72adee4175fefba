"""SwiGLU (Shazeer, arXiv 2002.05202) in plain TensorFlow; there is no fused op yet."""

import tensorflow as tf

from tftrain.ops.dtypes import wide_dtype


def reference_swiglu(gate: tf.Tensor, up: tf.Tensor) -> tf.Tensor:
    """Returns silu(gate) * up, where silu(z) = z sigmoid(z).

    Args:
        gate: any shape and float dtype.
        up: like `gate`.

    Returns:
        A tensor like `gate`, computed in fp32 (float64 for float64) and rounded once.
    """
    wide = wide_dtype(gate.dtype)
    # For backward, TensorFlow's silu keeps its input alone.
    return tf.cast(tf.nn.silu(tf.cast(gate, wide)) * tf.cast(up, wide), gate.dtype)
