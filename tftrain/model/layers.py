"""The two basic layers: the affine map and layer normalization."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
import tf_keras

from tftrain.architecture import parts
from tftrain.config.train import ModelConfig
from tftrain.model.parameters import Parameters
from tftrain.model.weight_gradients import is_deferring, product
from tftrain.ops.dtypes import wide_dtype
from tftrain.ops.layer_norm import layer_norm, reference_layer_norm
from tftrain.ops.shapes import dimension
from tftrain.parallel.tensor import TensorRanks


class Dense(tf_keras.layers.Layer):
    """An affine map of the last axis, y = x W + b; tensor parallel ranks may divide W by its outputs or its inputs.

    Attributes:
        kernel: [inputs, outputs] of this rank.
        bias: [outputs] of this rank, or None.
    """

    def __init__(self, parameters: Parameters, spec: parts.Dense, scale: float = 1.0):
        """Makes the variables `kernel` and, if there is one, `bias`.

        Args:
            parameters: makes the variables.
            spec: widths, bias and division. If outputs are divided, each rank computes some of them, from an input that
                went through `TensorRanks.enter`; if inputs are, its part of a sum, without the bias.
            scale: factor of the kernel's initial standard deviation.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.place, self.bias = parameters.place, None
        kernel, *biases = spec.variables(self.place)
        self.kernel = parameters.normal("kernel", kernel.shape, kernel.axis, kernel.unit, scale)
        for bias in biases:
            self.bias = parameters.zeros("bias", bias.shape, bias.axis, bias.unit)

    def call(self, x: tf.Tensor, with_bias: bool = True) -> tf.Tensor:
        """Maps [b, ..., inputs] to [b, ..., outputs] in the layer's dtype.

        Args:
            x: the input.
            with_bias: False if the op that follows adds the bias.
        """
        # One matrix product over all tokens, followed at once by the bias: TensorFlow fuses that pair.
        y = product(tf.reshape(x, [-1, x.shape[-1]]), self.kernel)
        if with_bias and self.bias is not None:
            y = tf.nn.bias_add(y, self.bias)
        inner = [dimension(x, axis) for axis in range(1, x.shape.rank - 1)]
        return tf.reshape(y, [-1, *inner, y.shape[-1]])


class Entered(NamedTuple):
    """The input of dense layers that tensor parallel ranks divide by their outputs.

    Attributes:
        x: [b, S, H], equal on every rank; None if the products exist already.
        products: x times the kernel of each layer, [b, S, outputs of this rank].
    """

    x: tf.Tensor | None
    products: tuple[tf.Tensor, ...] = ()

    def outputs(self, layers: Sequence[Dense], with_bias: bool = True) -> list[tf.Tensor]:
        """Returns the layers' outputs, each [b, S, outputs of this rank]."""
        if self.x is not None:
            return [layer(self.x, with_bias) for layer in layers]
        with_biases = zip(layers, self.products, strict=True)
        return [y if layer.bias is None or not with_bias else tf.nn.bias_add(y, layer.bias) for layer, y in with_biases]


def enter_dense(ranks: TensorRanks, x: tf.Tensor, layers: Sequence[Dense], place: str) -> Entered:
    """Brings the residual stream into dense layers; under sequence parallelism backward gathers it again.

    Args:
        ranks: the tensor parallel ranks.
        x: [b, S, H], or this rank's tokens of it.
        layers: divided by their outputs.
        place: of the layers, for the collectives.
    """
    # With a pipeline's backward in two halves, the layers themselves defer the gradients of their kernels.
    if ranks.divide_sequence and not is_deferring():
        return Entered(None, tuple(ranks.entered_products(x, [layer.kernel for layer in layers], place)))
    return Entered(ranks.enter(x, place))


def leave_dense(ranks: TensorRanks, y: tf.Tensor, layer: Dense, with_bias: bool) -> tf.Tensor:
    """Brings the output of a dense layer that is divided by its inputs back into the residual stream.

    Args:
        ranks: the tensor parallel ranks.
        y: this rank's part of the sum, [b, S, H], without the bias; on one rank, the whole output.
        layer: which computed it.
        with_bias: whether `y` lacks a bias that no later op adds. A single rank adds it in the layer.

    Returns:
        [b, S, H], or this rank's tokens of it.
    """
    y = ranks.leave(y, layer.place)
    return tf.nn.bias_add(y, layer.bias) if with_bias and ranks.group.size > 1 else y


class LayerNorm(tf_keras.layers.Layer):
    """Layer normalization (Ba et al., arXiv 1607.06450) with its scale `gamma` and shift `beta`."""

    def __init__(self, parameters: Parameters, spec: parts.Norm, config: ModelConfig):
        """Makes the variables `gamma` and `beta`.

        Args:
            parameters: makes the variables.
            spec: the width H.
            config: the epsilon, the variables' dtype and the implementation.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        if config.ln_dtype == "fp32":
            parameters = parameters.in_dtype(wide_dtype(parameters.dtype).name)
        self.epsilon = config.layer_norm_epsilon
        self.normalize = {"fused": layer_norm, "reference": reference_layer_norm}[config.ln_impl]
        self.gamma = parameters.ones("gamma", [spec.width])
        self.beta = parameters.zeros("beta", [spec.width])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes the last axis of [..., H]."""
        return self.normalize(x, self.gamma, self.beta, self.epsilon)
