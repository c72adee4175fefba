"""The class of a model by its configuration: the one place that names the classes of models.

In the place of the heads of pre-training, encoders and decoders may give the vector of a text: its hidden states
pooled, a dense layer, and the length 1. The dense layer is replicated: every tensor parallel rank computes the same.
"""

from collections.abc import Collection

import tensorflow as tf

from tftrain.config.model import ModelConfig
from tftrain.model.bert import BertClassifier, BertEncoder, BertPretrainer, pooled
from tftrain.model.decoder import Decoder
from tftrain.model.layers import Dense
from tftrain.model.parameters import Parameters
from tftrain.model.transformer import Transformer
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import Batch, wide_dtype


class TextEmbedder(Transformer):
    """What both have in the place of the heads of pre-training. Its config has the flags of vectors."""

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        self.pooler, self.projection = None, None
        if layers := self.architecture.head("projection"):
            self.projection = Dense(parameters.inner("projection"), layers[""])
        self._activation = tf.tanh if config.embedding_activation == "tanh" else tf.identity
        self._pooling, self._is_unit = config.text_pooling, config.normalize_embeddings

    def named_outputs(self, batch: Batch, dropout: DropoutKey | None, heads: Collection[str]) -> dict[str, tf.Tensor]:
        """Returns the hidden states and the vectors; see `BertPretrainer.named_outputs`."""
        hidden = self.output(self.hidden_states(self.with_positions(batch), dropout))
        return {"last_hidden_state": hidden, "sentence_embedding": self.vectors(hidden, batch)}

    def head_outputs(
        self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None = None
    ) -> tf.Tensor:
        """Maps the residual stream after the last block, [b, S, H] or this rank's tokens of it, to `vectors`."""
        return self.vectors(self.output(x), batch, deferred)

    def vectors(self, hidden: tf.Tensor, batch: Batch, deferred: Deferred | None = None) -> tf.Tensor:
        """Maps the hidden states of texts, [b, S, H], to their vectors, [b, D], float32 (float64 in a float64 model).

        `batch` has input_mask, int32 [b, S], 0 for padding; and perhaps `unpooled`, int32 [b], the number of tokens at
        the beginning of each text that are not pooled. For `deferred`, see `Dense.call`.
        """
        mask, narrow, wide = tf.cast(batch["input_mask"], tf.int32), hidden.dtype, wide_dtype(hidden.dtype)
        if "unpooled" in batch:
            mask *= tf.cast(tf.cumsum(mask, axis=1) > batch["unpooled"][:, tf.newaxis], tf.int32)
        x = pooled(tf.cast(hidden, wide), mask, self._pooling)
        if self.projection is not None:
            x = self._activation(tf.cast(self.projection(tf.cast(x, narrow), deferred), wide))
        return tf.math.l2_normalize(x, axis=-1) if self._is_unit else x


class BertEmbedder(TextEmbedder, BertEncoder):
    """An encoder that gives vectors."""


class DecoderEmbedder(TextEmbedder, Decoder):
    """A decoder that gives vectors; it has no output layer."""


# By what the family learns.
PRETRAINED: dict[str, type[Transformer]] = {"masked": BertPretrainer, "causal": Decoder}
EMBEDDERS: dict[str, type[Transformer]] = {"masked": BertEmbedder, "causal": DecoderEmbedder}


def model_class(config: ModelConfig) -> type[Transformer]:
    """Returns the class of a model: that of its objective, or the encoder with the head of a fine-tuned task."""
    if config.gives_vectors:
        return EMBEDDERS[config.objective]
    return BertClassifier if config.is_fine_tuned else PRETRAINED[config.objective]
