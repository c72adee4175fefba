"""Encoders, such as BERT (Devlin et al., arXiv 1810.04805): embedding, a list of blocks, and the heads of a task.

The dense layers of the heads are replicated: every tensor parallel rank computes the same with them.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import tensorflow as tf
import tf_keras

from tftrain.architecture import parts
from tftrain.config.model import ModelConfig
from tftrain.model.block import SITES_PER_BLOCK
from tftrain.model.embedding import TokenEmbedding, lookup
from tftrain.model.layers import Dense, Norm
from tftrain.model.output_layer import output_cross_entropy, output_logits
from tftrain.model.parameters import Parameters
from tftrain.model.transformer import Transformer
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.dropout import DropoutKey, dropout_at, reference_dropout
from tftrain.ops.gelu import bias_gelu, reference_bias_gelu
from tftrain.ops.tensors import Batch, dimension, wide_dtype
from tftrain.parallel.tensor import copy_to_ranks


class LossTerms(NamedTuple):
    """What a loss needs of the model's predictions, float32 (float64 in a float64 model)."""

    mlm_entropy: tf.Tensor  # [b, P], the cross-entropy of the masked words in nats
    mlm_correct: tf.Tensor  # [b, P], 1 where the label is the best word, else 0; without gradient
    # [b, 2], or [b, E, 2] of rows with up to E examples; class 1 is a random next sentence. None without that loss.
    nsp_logits: tf.Tensor | None


class BertEncoder(Transformer):
    """The encoder, or a part of it, without heads."""

    def attention_mask(self, batch: Batch) -> AttentionMask:
        """Every token attends to all tokens of its row; or of its example if there are `sequence_ids`, int32 [b, S].

        `input_mask`, int32 [b, S], is 0 for padding.
        """
        return AttentionMask(keys=tf.cast(batch["input_mask"], tf.int32), sequences=batch.get("sequence_ids"))

    def encode(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the hidden states of a batch, [b, S, H], and the pooled first token, [b, H], if any; inference."""
        x = self.output(self.hidden_states(self.with_positions(batch)))
        return x, None if self.pooler is None else self.pooler(x)


class BertPretrainer(BertEncoder):
    """The encoder with the heads for masked words and the next sentence."""

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        head = self.architecture.head
        masked_lm = parameters.inner("masked_lm")
        self.masked_lm = MaskedLMHead(masked_lm, head("masked_lm"), config, self.token_embedding)
        self.pooler = self.next_sentence = None
        if head("next_sentence"):
            self.pooler = Pooler(parameters.inner("pooler"), head("pooler")[""])
            self.next_sentence = Classifier(parameters.inner("next_sentence"), head("next_sentence")[""])

    def loss_terms(self, x: tf.Tensor, batch: Batch, deferred: Deferred | None = None) -> LossTerms:
        """Maps the residual stream after the last block, [b, S, H] or this rank's tokens of it, to terms of the loss.

        `batch` has masked_lm_positions and masked_lm_ids, int32 [b, P], and sequence_starts if a row has several
        examples. Logits of all masked words do not exist at once. For `deferred`, see `Dense.call`.
        """
        x = self.output(x)
        of_words = self.masked_lm.cross_entropy(x, batch["masked_lm_positions"], batch["masked_lm_ids"], deferred)
        return LossTerms(*of_words, self.next_sentence_logits(x, batch, deferred))

    def named_outputs(self, batch: Batch, dropout: DropoutKey | None, heads: Collection[str]) -> dict[str, tf.Tensor]:
        """Returns the hidden states and what some of the heads give, by the names of transformers.

        `logits`, [b, P, words], are at masked_lm_positions, by default at every token.
        """
        x = self.output(self.hidden_states(self.with_positions(batch), dropout))
        outputs = {"last_hidden_state": x}
        if self.pooler is not None and "pooler" in heads:
            outputs["pooler_output"] = self.pooler(x)
        if "masked_lm" in heads:
            every = tf.range(dimension(x, 1))[tf.newaxis] + tf.zeros([tf.shape(x)[0], 1], tf.int32)
            outputs["logits"] = self.masked_lm(x, batch.get("masked_lm_positions", every))
        if self.next_sentence is not None and {"pooler", "next_sentence"} <= set(heads):
            outputs["seq_relationship_logits"] = self.next_sentence_logits(x, batch)
        return outputs

    def next_sentence_logits(self, x: tf.Tensor, batch: Batch, deferred: Deferred | None = None) -> tf.Tensor | None:
        """Maps the encoder's output, [b, S, H], to logits, [b, 2]; class 1 is a random next sentence. None: no head."""
        if self.next_sentence is None:
            return None
        return self.next_sentence(self.pooler(x, batch.get("sequence_starts"), deferred), deferred)


class BertClassifier(BertEncoder):
    """The encoder with the head of a fine-tuned task: a classifier of the pooled token, or of every token, or none."""

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        head = self.architecture.head
        pooler, transform, classifier = head("pooler"), head("masked_lm"), head("classifier")
        self.pooler = Pooler(parameters.inner("pooler"), pooler[""]) if pooler else None
        if classifier and "dense" in classifier:
            dense = parameters.inner("classifier").inner("dense")
            self.pooler = Pooler(dense, classifier["dense"], config.family.classifier_activation)
        self.transform = Transform(parameters.inner("masked_lm"), transform, config) if transform else None
        self.classifier = Classifier(parameters.inner("classifier"), classifier[""]) if classifier else None
        self._pooling = config.classifier_pooling if config.predicts_samples else None
        self._is_of_ends = config.task == "question_answering"
        self._dropout_rate = config.hidden_dropout_prob
        self._dropout_site = SITES_PER_BLOCK * (config.num_hidden_layers + 1)

    def named_outputs(self, batch: Batch, dropout: DropoutKey | None, heads: Collection[str]) -> dict[str, tf.Tensor]:
        """Returns the hidden states, and what the heads give; see `BertPretrainer.named_outputs`."""
        x = self.hidden_states(self.with_positions(batch), dropout)
        outputs = {"last_hidden_state": self.output(x)}
        if self.pooler is not None and "pooler" in heads:
            outputs["pooler_output"] = self.pooler(outputs["last_hidden_state"])
        logits = self.head_outputs(x, batch, dropout)
        if self._is_of_ends:
            return outputs | dict(zip(("start_logits", "end_logits"), tf.unstack(logits, axis=-1), strict=True))
        return outputs | {"logits": logits}

    def head_outputs(
        self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None = None
    ) -> tf.Tensor:
        """Maps the residual stream after the last block, [b, S, H] or this rank's tokens of it, to the head's numbers.

        `batch` has an input_mask, int32 [b, S], 0 for padding. `dropout` is that of what the classifier reads, None in
        inference. For `deferred`, see `Dense.call`.

        Returns:
            Logits, [b, outputs] or [b, S, outputs]; the encoder's output, [b, S, H], if the task has no classifier.
            float32 (float64 in a float64 model).
        """
        x = self.output(x)
        if self.pooler is not None:
            x = self.pooler(x, None, deferred)
        elif self.transform is not None:
            if self._pooling:
                x = x[:, 0] if self._pooling == "cls" else pooled(x, batch["input_mask"])
            x = self.transform(x, deferred)
        if self.classifier is None:
            return tf.cast(x, wide_dtype(x.dtype))
        x = reference_dropout(x, dropout_at(dropout, self._dropout_rate, self._dropout_site))
        return self.classifier(x, deferred)


class Transform(tf_keras.layers.Layer):
    """norm(gelu(x W + b)): what the output layer reads of a masked word and, in ModernBERT, a classifier of a token."""

    def __init__(self, parameters: Parameters, layers: Mapping[str, parts.Leaf], config: ModelConfig):
        """Makes the dense layer `transform` and its `norm`, which `layers` describes by these names."""
        super().__init__(dtype=parameters.dtype, autocast=False)
        is_fused, self.gelu_form = config.gelu_impl == "fused", config.family.head_gelu or config.gelu_form
        self.gelu = bias_gelu if is_fused else reference_bias_gelu
        self.dense = Dense(parameters.inner("transform"), layers["transform"], bias_later=is_fused)
        self.norm = Norm(parameters.inner("norm"), layers["norm"], config)

    def call(self, x: tf.Tensor, deferred: Deferred | None = None) -> tf.Tensor:
        """Maps [..., H] to the same shape."""
        return self.norm(self.gelu(self.dense(x, deferred), self.dense.later_bias, self.gelu_form))


class MaskedLMHead(tf_keras.layers.Layer):
    """Logits over the vocabulary at the masked positions: a `Transform`, then the token embedding as output layer."""

    def __init__(
        self, parameters: Parameters, layers: Mapping[str, parts.Leaf], config: ModelConfig, tokens: TokenEmbedding
    ):
        """Makes the layers of the `Transform`, and the output's `bias`, which `layers` describes by name."""
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.token_embedding, self.group, self.scope = tokens, parameters.ranks.group, parameters.scope
        self.transform = Transform(parameters, layers, config)
        self.bias = parameters.leaf("bias", layers["bias"])

    def call(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Maps the encoder's output, [b, S, H], to logits at the masked positions, int32 [b, P], each below S.

        They are over this rank's words, [b, P, words], float32 (float64 for float64).
        """
        logits = output_logits(self._rows(x, positions), self.token_embedding.table, self.bias)  # [b * P, words]
        return tf.reshape(logits, [-1, dimension(positions, 1), self.bias.shape[0]])

    def cross_entropy(
        self, x: tf.Tensor, positions: tf.Tensor, labels: tf.Tensor, deferred: Deferred | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss at the masked positions, without logits of all of them at once.

        For `x` and `positions`, see `call`, and for `deferred`, `Dense.call`. The labels, int32 [b, P], are words of
        the whole vocabulary.

        Returns:
            Cross-entropy in nats and 1 where the label is the best class, both [b, P], fp32 (float64 for float64); see
            `output_cross_entropy`.
        """
        rows, tokens = self._rows(x, positions, deferred), self.token_embedding
        return output_cross_entropy(rows, tokens.table, labels, tokens.first, self.group, self.scope, bias=self.bias)

    def _rows(self, x: tf.Tensor, positions: tf.Tensor, deferred: Deferred | None = None) -> tf.Tensor:
        """Returns what the output layer reads at the masked positions, [b * P, H]."""
        picked = self.transform(tf.reshape(pick(x, positions), [-1, x.shape[2]]), deferred)
        return copy_to_ranks(self.group, picked, self.scope)


class Pooler(Dense):
    """A dense layer and tanh, or another activation, over the first token: what classifiers of an example read."""

    def __init__(self, parameters: Parameters, spec: parts.DenseSpec, activation: str = "tanh"):
        """Makes the variables of the dense layer; `activation` is a name of Keras."""
        super().__init__(parameters, spec)
        self._activation = tf_keras.activations.get(activation)

    def call(self, x: tf.Tensor, starts: tf.Tensor | None = None, deferred: Deferred | None = None) -> tf.Tensor:
        """Maps the encoder's output, [b, S, H], to the pooled first token, [b, H]; for `deferred`, see `Dense.call`.

        With `starts`, int32 [b, E], the first token of each example of a row, the result is [b, E, H].
        """
        return self._activation(super().call(x[:, 0] if starts is None else pick(x, starts), deferred))


class Classifier(Dense):
    """A dense layer to logits: of the next sentence from the pooled token, or of a fine-tuned task."""

    def call(self, x: tf.Tensor, deferred: Deferred | None = None) -> tf.Tensor:
        """Maps [..., H] to logits [..., classes], float32 (float64 for float64)."""
        logits = super().call(x, deferred)
        return tf.cast(logits, wide_dtype(logits.dtype))


def pick(x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Picks the tokens at `positions`, int32 [b, n], each below S, of hidden states [b, S, H]: [b, n, H]."""
    length, hidden = dimension(x, 1), x.shape[2]
    rows = positions + tf.range(tf.shape(positions)[0])[:, tf.newaxis] * length
    picked = lookup(tf.reshape(x, [-1, hidden]), tf.reshape(rows, [-1]))
    return tf.reshape(picked, [-1, dimension(positions, 1), hidden])


def pooled(hidden: tf.Tensor, mask: tf.Tensor, pooling: str = "mean") -> tf.Tensor:
    """Maps hidden states, [b, S, H], to one vector for each row, [b, H]; zeros for a row without tokens.

    The mask, [b, S], is 0 for what is not pooled, anywhere. mean and max are over tokens; cls and last are one token.
    """
    wide = wide_dtype(hidden.dtype)
    weights, hidden_wide = tf.cast(mask, wide), tf.cast(hidden, wide)
    if pooling == "max":
        real = weights[:, :, tf.newaxis] > 0
        largest = tf.reduce_max(tf.where(real, hidden_wide, wide.min), axis=1)
        return tf.cast(tf.where(tf.reduce_any(real, axis=1), largest, 0), hidden.dtype)
    if pooling != "mean":  # A sum over one token has its bits.
        weights *= tf.cast(tf.cumsum(weights, axis=1, reverse=pooling == "last") == 1, wide)
    weights = weights[:, :, tf.newaxis]
    sums = tf.reduce_sum(hidden_wide * weights, axis=1)
    return tf.cast(sums / tf.maximum(tf.reduce_sum(weights, axis=1), 1), hidden.dtype)
