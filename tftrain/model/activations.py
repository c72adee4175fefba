"""GeLU (Hendrycks and Gimpel, arXiv 1606.08415) in its two forms.

Beside `tftrain.ops.gelu.reference_bias_gelu`, which computes in fp32 and by erfc and is the fused op's specification,
because that is slower: forward and backward take up to twice as long in bf16.
"""

import math

import tensorflow as tf

from tftrain.config import ModelConfig
from tftrain.model.dense import Dense
from tftrain.ops.gelu import bias_gelu


def gelu(x: tf.Tensor, form: str) -> tf.Tensor:
    """Multiplies x by the share of a normal distribution that lies below it.

    Args:
        x: any shape and float dtype; computed in that dtype.
        form: "erf", exact; or "tanh", the approximation 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) of the
            original BERT, here as x sigmoid(2 ...), which is the same function in fewer operations.

    Returns:
        A tensor like `x`.
    """
    if form == "erf":
        return 0.5 * x * (1 + tf.math.erf(x * math.sqrt(0.5)))
    scale = 2 * math.sqrt(2 / math.pi)
    return x * tf.sigmoid(x * (scale + scale * 0.044715 * tf.square(x)))


def dense_gelu(dense: Dense, x: tf.Tensor, config: ModelConfig) -> tf.Tensor:
    """Returns gelu(dense(x)); the fused op takes the layer's bias along.

    Args:
        dense: the layer, with a bias.
        x: [b, ..., inputs].
        config: the form of the GeLU and its implementation.

    Returns:
        [b, ..., outputs], in the layer's dtype.
    """
    if config.gelu_impl == "fused":
        return bias_gelu(dense(x, with_bias=False), dense.bias, config.gelu_form)
    return gelu(dense(x), config.gelu_form)
