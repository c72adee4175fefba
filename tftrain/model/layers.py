"""The two basic layers: the affine map and the norm."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import tensorflow as tf
import tf_keras

from tftrain.architecture import parts
from tftrain.config.model import ModelConfig
from tftrain.model.parameters import Parameters
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.layer_norm import layer_norm, reference_layer_norm, reference_rms_norm, rms_norm
from tftrain.ops.tensors import dimension, wide_dtype


class Dense(tf_keras.layers.Layer):
    """An affine map of the last axis, y = x W + b; tensor parallel ranks may divide W by its outputs or its inputs.

    Attributes:
        kernel: [inputs, outputs] of this rank.
        bias: [outputs] of this rank, or None.
    """

    def __init__(self, parameters: Parameters, spec: parts.DenseSpec, bias_later: bool = False):
        """Makes the variables `kernel` and, if there is one, `bias`.

        Args:
            spec: widths, bias and division. If outputs are divided, each rank computes some of them, from an input that
                went through `enter_dense`; if inputs are, its part of a sum, to which `leave_dense` adds the bias.
            bias_later: whether the op that follows adds the bias.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.scope, self.ranks = parameters.scope, parameters.ranks
        kernel, *biases = spec.variables(self.scope)
        self.kernel = parameters.make(kernel)
        self.bias = parameters.make(biases[0]) if biases else None
        self._bias_later, self._is_summed = bias_later, spec.divided == "inputs" and self.ranks.group.size > 1

    def call(self, x: tf.Tensor, deferred: Deferred | None = None) -> tf.Tensor:
        """Maps [b, ..., inputs] to [b, ..., outputs] in the layer's dtype.

        `deferred` leaves the gradient of the kernel for later; None: backward computes it.
        """
        # One matrix product over all tokens, followed at once by the bias: TensorFlow fuses that pair.
        rows = tf.reshape(x, [-1, x.shape[-1]])
        y = tf.matmul(rows, self.kernel) if deferred is None else deferred.product(rows, self.kernel)
        y = y if self._is_summed else self.with_bias(y)
        inner = [dimension(x, axis) for axis in range(1, x.shape.rank - 1)]
        return tf.reshape(y, [-1, *inner, y.shape[-1]])

    def with_bias(self, y: tf.Tensor) -> tf.Tensor:
        """Returns y + b, [..., outputs]; or y, if there is no bias or the op that follows adds it."""
        return y if self.bias is None or self._bias_later else tf.nn.bias_add(y, self.bias)

    @property
    def later_bias(self) -> tf.Variable | None:
        """The bias, if the op that follows adds it."""
        return self.bias if self._bias_later else None


class Entered(NamedTuple):
    """The input of dense layers that tensor parallel ranks divide by their outputs."""

    x: tf.Tensor | None  # [b, S, H], equal on every rank; None if the products exist already
    products: tuple[tf.Tensor, ...] = ()  # x times the kernel of each layer, [b, S, outputs of this rank]

    def outputs(self, layers: Sequence[Dense], deferred: Deferred | None) -> list[tf.Tensor]:
        """Returns the layers' outputs, each [b, S, outputs of this rank]."""
        if self.x is not None:
            return [layer(self.x, deferred) for layer in layers]
        return [layer.with_bias(y) for layer, y in zip(layers, self.products, strict=True)]


def enter_dense(x: tf.Tensor, layers: Sequence[Dense], name: str, deferred: Deferred | None) -> Entered:
    """Brings the residual stream into dense layers that are divided by their outputs; the collectives get a name.

    `x` is [b, S, H], or this rank's tokens of it; under sequence parallelism backward gathers it again. For `deferred`,
    see `Dense.call`.
    """
    ranks = layers[0].ranks
    kernels = [layer.kernel for layer in layers]
    if ranks.divide_sequence and not isinstance(deferred, Deferred):
        return Entered(None, tuple(ranks.entered_products(x, kernels, name, keep=deferred is None)))
    return Entered(ranks.enter(x, name))


def leave_dense(y: tf.Tensor, layer: Dense) -> tf.Tensor:
    """Brings the output of a dense layer that is divided by its inputs back into the residual stream.

    Args:
        y: this rank's part of the sum, [b, S, H], without the bias; on one rank, the whole output.
        layer: which computed it.

    Returns:
        [b, S, H], or this rank's tokens of it.
    """
    return layer.with_bias(layer.ranks.leave(y, layer.scope)) if layer.ranks.group.size > 1 else y


# By kind and implementation.
NORMS = {
    ("layer", "fused"): layer_norm,
    ("layer", "reference"): reference_layer_norm,
    ("rms", "fused"): rms_norm,
    ("rms", "reference"): reference_rms_norm,
}


class Norm(tf_keras.layers.Layer):
    """Layer normalization (Ba et al., arXiv 1607.06450) with its scale `gamma` and shift `beta`; or RMSNorm.

    RMSNorm (Zhang and Sennrich, arXiv 1910.07467) has a scale alone.
    """

    def __init__(self, parameters: Parameters, spec: parts.NormSpec, config: ModelConfig):
        """Makes the variables `gamma` and, if there is a shift, `beta`."""
        super().__init__(dtype=parameters.dtype, autocast=False)
        if config.ln_dtype == "fp32":
            parameters = replace(parameters, dtype=wide_dtype(parameters.dtype).name)
        self.epsilon = config.layer_norm_epsilon
        self.normalize = NORMS[spec.kind, config.ln_impl]
        self.gamma, *betas = map(parameters.make, spec.variables(parameters.scope))
        self.shift = (*(betas or [None]),) if spec.kind == "layer" else ()

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes the last axis of [..., H]."""
        return self.normalize(x, self.gamma, *self.shift, self.epsilon)
