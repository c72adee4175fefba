"""Weights in 8 bits with one scale for each channel; the model multiplies them by it and computes in fp32.

A weight w becomes round(w / s), where s is the largest magnitude of its channel divided by 127. The channels of a
kernel are its outputs. The channels of the token embedding and of a decoder's output layer are the tokens. Biases,
norms and small tables stay fp32.
"""

from collections.abc import Callable

import tensorflow as tf

from tftrain.model.decoder import Decoder
from tftrain.model.layers import Dense
from tftrain.model.registry import TextEmbedder
from tftrain.model.transformer import Transformer

_LARGEST = 127


class QuantizedTable(tf.Module):
    """A matrix in 8 bits that takes the place of a variable, fp32 with two axes."""

    values: tf.Variable  # int8, of the matrix's shape
    scale: tf.Variable  # fp32, [1, outputs] or [words, 1]

    def __init__(self, matrix: tf.Variable, axis: int):
        """Rounds a matrix; the elements of one channel lie along the axis."""
        super().__init__()
        largest = tf.reduce_max(tf.abs(matrix), axis=axis, keepdims=True)
        scale = tf.where(largest > 0, largest / _LARGEST, tf.ones_like(largest))
        self.values = tf.Variable(tf.cast(tf.round(matrix / scale), tf.int8), trainable=False)
        self.scale = tf.Variable(scale, trainable=False)
        self.shape, self.dtype = matrix.shape, matrix.dtype

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        """Returns the matrix, fp32; TensorFlow calls this where an op takes the table."""
        return tf.cast(self.values, tf.float32) * self.scale

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns rows, fp32; TensorFlow calls this in `tf.gather`. The scale is one for each row."""
        return tf.cast(tf.gather(self.values, indices), tf.float32) * tf.gather(self.scale, indices)


def quantize(network: Transformer) -> None:
    """Replaces all kernels, the token embedding and the output layer of a model in fp32; it can't be trained more."""
    for layer in [layer for layer in network.submodules if isinstance(layer, Dense)]:
        layer.kernel = QuantizedTable(layer.kernel, axis=0)
    table = network.token_embedding.table
    network.token_embedding.table = QuantizedTable(table, axis=1)
    if isinstance(network, Decoder) and not isinstance(network, TextEmbedder):  # That has no output layer.
        is_tied = network.output_table is table
        network.output_table = network.token_embedding.table if is_tied else QuantizedTable(network.output_table, 1)


VARIANTS: dict[str, tuple[str, Callable[[Transformer], None] | None]] = {
    "fp32": ("float32", None),
    "bf16": ("bfloat16", None),
    "int8": ("float32", quantize),
}
