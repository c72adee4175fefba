"""The heads of BERT (Devlin et al., arXiv 1810.04805): masked words, and classifiers of the pooled token or of all."""

import tensorflow as tf
import tf_keras

from tftrain.config import ModelConfig
from tftrain.model.embedding import SlicedLogits, lookup
from tftrain.model.feed_forward import dense_gelu
from tftrain.model.layers import Dense, LayerNorm
from tftrain.model.parameters import Parameters
from tftrain.ops.dtypes import wide_dtype
from tftrain.ops.shapes import dimension
from tftrain.parallel.tensor import copy_to_ranks


class MaskedLMHead(tf_keras.layers.Layer):
    """Logits over the vocabulary at the masked positions: a dense layer, then the word embedding as output layer."""

    def __init__(self, parameters: Parameters, config: ModelConfig, vocab_size: int):
        """Makes the dense layer `transform`, its `norm`, and the output's `bias`.

        Args:
            parameters: makes the variables.
            config: sizes, the form of the GeLU and the implementations.
            vocab_size: number of classes, over all ranks.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.config, self.group, self.place = config, parameters.ranks.group, parameters.place
        hidden = config.hidden_size
        self.transform = Dense(parameters.scope("transform"), hidden, hidden)
        self.norm = LayerNorm(parameters.scope("norm"), config)
        self.bias = parameters.zeros("bias", [vocab_size], axis=0)
        self.first_class = parameters.offset("bias")

    def call(self, x: tf.Tensor, positions: tf.Tensor, word_table: tf.Tensor) -> tf.Tensor | SlicedLogits:
        """Predicts the words at the masked positions.

        Args:
            x: [b, S, H], the encoder's output.
            positions: int32 [b, P], each below S.
            word_table: [vocab, H], the word embedding, or this rank's rows of it.

        Returns:
            Logits [b, P, vocab], float32 (float64 for float64); SlicedLogits where tensor parallel ranks divide the
            vocabulary.
        """
        length, hidden = dimension(x, 1), x.shape[2]
        starts = tf.range(tf.shape(positions)[0]) * length
        rows = tf.reshape(positions + starts[:, None], [-1])
        picked = lookup(tf.reshape(x, [-1, hidden]), rows)  # [b * P, H]
        picked = self.norm(dense_gelu(self.transform, picked, self.config))
        picked = copy_to_ranks(self.group, picked, self.place)
        logits = tf.nn.bias_add(tf.matmul(picked, word_table, transpose_b=True), self.bias)  # [b * P, vocab]
        logits = tf.cast(logits, wide_dtype(logits.dtype))
        logits = tf.reshape(logits, [-1, dimension(positions, 1), self.bias.shape[0]])
        return logits if self.group.size == 1 else SlicedLogits(logits, self.first_class, self.group, self.place)


class Pooler(tf_keras.layers.Layer):
    """A dense layer and tanh over the first token: what classifiers of a whole example read."""

    def __init__(self, parameters: Parameters, hidden_size: int):
        """Makes the variables; `hidden_size` is the width H of the encoder."""
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.dense = Dense(parameters, hidden_size, hidden_size)

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


def mean_embeddings(hidden: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Maps hidden states [b, S, H] to their normalized means over tokens, [b, H]; `mask` [b, S] is 0 for padding."""
    weights = tf.cast(mask, hidden.dtype)[:, :, tf.newaxis]
    mean = tf.reduce_sum(hidden * weights, axis=1) / tf.maximum(tf.reduce_sum(weights, axis=1), 1)
    return tf.math.l2_normalize(mean, axis=-1)


class Classifier(tf_keras.layers.Layer):
    """A dense layer to logits: of the next sentence from the pooled token, or of a fine-tuned task."""

    def __init__(self, parameters: Parameters, hidden_size: int, classes: int):
        """Makes the variables for inputs of `hidden_size` elements."""
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.dense = Dense(parameters, hidden_size, classes)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [..., H] to logits [..., classes], float32 (float64 for float64)."""
        logits = self.dense(x)
        return tf.cast(logits, wide_dtype(logits.dtype))
