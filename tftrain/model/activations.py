"""GeLU (Hendrycks and Gimpel, arXiv 1606.08415) in its two forms."""

import math

import tensorflow as tf


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
