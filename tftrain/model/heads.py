"""The heads of BERT (Devlin et al., arXiv 1810.04805): masked words, and classifiers of the pooled token or of all."""

from collections.abc import Mapping

import tensorflow as tf
import tf_keras

from tftrain.architecture import parts
from tftrain.config.train import ModelConfig
from tftrain.model.embedding import lookup
from tftrain.model.feed_forward import dense_gelu
from tftrain.model.layers import Dense, LayerNorm
from tftrain.model.output_layer import tied_cross_entropy, tied_logits
from tftrain.model.parameters import Parameters
from tftrain.ops.dtypes import wide_dtype
from tftrain.ops.shapes import dimension
from tftrain.parallel.tensor import copy_to_ranks


class MaskedLMHead(tf_keras.layers.Layer):
    """Logits over the vocabulary at the masked positions: a dense layer, then the word embedding as output layer."""

    def __init__(self, parameters: Parameters, layers: Mapping[str, parts.Leaf], config: ModelConfig):
        """Makes the dense layer `transform`, its `norm`, and the output's `bias`.

        Args:
            parameters: makes the variables.
            layers: the three, by these names.
            config: the form of the GeLU and the implementations.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.config, self.group, self.place = config, parameters.ranks.group, parameters.place
        self.transform = Dense(parameters.scope("transform"), layers["transform"])
        self.norm = LayerNorm(parameters.scope("norm"), layers["norm"], config)
        self.bias = parameters.zeros("bias", [layers["bias"].size], axis=0)
        self.first_class = parameters.offset("bias")

    def call(self, x: tf.Tensor, positions: tf.Tensor, word_table: tf.Tensor) -> tf.Tensor:
        """Predicts the words at the masked positions.

        Args:
            x: [b, S, H], the encoder's output.
            positions: int32 [b, P], each below S.
            word_table: [vocab, H], the word embedding, or this rank's rows of it.

        Returns:
            Logits over this rank's words, [b, P, words], float32 (float64 for float64).
        """
        logits = tied_logits(self._rows(x, positions), word_table, self.bias)  # [b * P, words]
        return tf.reshape(logits, [-1, dimension(positions, 1), self.bias.shape[0]])

    def cross_entropy(
        self, x: tf.Tensor, positions: tf.Tensor, labels: tf.Tensor, word_table: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss at the masked positions, without logits of all of them at once.

        Args:
            x, positions, word_table: as for `call`.
            labels: int32 [b, P], words of the whole vocabulary.

        Returns:
            Cross-entropy in nats and 1 where the label is the best class, both [b, P], fp32 (float64 for float64); see
            `tied_cross_entropy`.
        """
        entropy, correct = tied_cross_entropy(
            self._rows(x, positions),
            word_table,
            tf.reshape(labels, [-1]),
            self.first_class,
            self.group,
            self.place,
            bias=self.bias,
        )
        return tf.reshape(entropy, tf.shape(labels)), tf.reshape(correct, tf.shape(labels))

    def _rows(self, x, positions):
        """Returns what the output layer reads at the masked positions, [b * P, H]."""
        picked = tf.reshape(pick(x, positions), [-1, x.shape[2]])
        picked = self.norm(dense_gelu(self.transform, picked, self.config))
        return copy_to_ranks(self.group, picked, self.place)


class Pooler(tf_keras.layers.Layer):
    """A dense layer and tanh over the first token: what classifiers of a whole example read."""

    def __init__(self, parameters: Parameters, spec: parts.Dense):
        """Makes the variables."""
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.dense = Dense(parameters, spec)

    def call(self, x: tf.Tensor, starts: tf.Tensor | None = None) -> tf.Tensor:
        """Maps the encoder's output to the pooled first token.

        Args:
            x: [b, S, H].
            starts: int32 [b, E], the first token of each example of a row; by default a row is one example.

        Returns:
            [b, H]; with `starts`, [b, E, H].
        """
        return tf.tanh(self.dense(x[:, 0] if starts is None else pick(x, starts)))


def pick(x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Picks the tokens at `positions`, int32 [b, n], each below S, of hidden states [b, S, H]: [b, n, H]."""
    length, hidden = dimension(x, 1), x.shape[2]
    rows = positions + tf.range(tf.shape(positions)[0])[:, tf.newaxis] * length
    picked = lookup(tf.reshape(x, [-1, hidden]), tf.reshape(rows, [-1]))
    return tf.reshape(picked, [-1, dimension(positions, 1), hidden])


def embeddings(hidden: tf.Tensor, mask: tf.Tensor, pooling: str = "mean") -> tf.Tensor:
    """Maps hidden states [b, S, H] to vectors of length 1, [b, H].

    Args:
        hidden: of the last block.
        mask: [b, S], 0 for padding.
        pooling: mean, over the tokens; or cls, the first token.
    """
    if pooling == "cls":
        return tf.math.l2_normalize(hidden[:, 0], axis=-1)
    weights = tf.cast(mask, hidden.dtype)[:, :, tf.newaxis]
    mean = tf.reduce_sum(hidden * weights, axis=1) / tf.maximum(tf.reduce_sum(weights, axis=1), 1)
    return tf.math.l2_normalize(mean, axis=-1)


class Classifier(tf_keras.layers.Layer):
    """A dense layer to logits: of the next sentence from the pooled token, or of a fine-tuned task."""

    def __init__(self, parameters: Parameters, spec: parts.Dense):
        """Makes the variables."""
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.dense = Dense(parameters, spec)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [..., H] to logits [..., classes], float32 (float64 for float64)."""
        logits = self.dense(x)
        return tf.cast(logits, wide_dtype(logits.dtype))
