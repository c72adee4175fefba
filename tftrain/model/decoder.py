"""A decoder and its next-token loss (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).

The residual stream goes through blocks with causal attention. The output layer is the token embedding, or a table of
its own. The loss is over all positions, so it is computed with the logits, in chunks.
"""

from collections.abc import Collection

import tensorflow as tf

from tftrain.config.model import ModelConfig
from tftrain.model.output_layer import output_cross_entropy
from tftrain.model.parameters import Parameters
from tftrain.model.transformer import Transformer
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import Batch, dimension, wide_dtype


class Decoder(Transformer):
    """The decoder, or a part of it."""

    def attention_mask(self, batch: Batch) -> AttentionMask:
        """Every token attends to itself and to those before it, with `sequence_ids` of its document alone.

        A row has padding only where a batch has an `input_mask`.
        """
        keys = batch.get("input_mask")
        keys = tf.ones_like(batch["input_ids"], tf.int32) if keys is None else tf.cast(keys, tf.int32)
        return AttentionMask(keys, causal=True, sequences=batch.get("sequence_ids"))

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        """Makes the output layer, unless it is the token embedding; ranks divide both by words."""
        self.output_table, self.first = self.token_embedding.table, self.token_embedding.first
        if spec := self.architecture.output:
            self.output_table = parameters.leaf("output", spec)
            self.first = parameters.offset("output")

    def encode(self, batch: Batch) -> tuple[tf.Tensor, None]:
        """Returns the hidden states of a batch after the final norm, [b, S, H], and None: nothing is pooled."""
        return self.output(self.hidden_states(batch)), None

    def named_outputs(self, batch: Batch, dropout: DropoutKey | None, heads: Collection[str]) -> dict[str, tf.Tensor]:
        """Returns the hidden states after the final norm, and the logits of the next tokens, by transformers' names."""
        x = self.hidden_states(batch, dropout)
        logits = self.logits(x)
        return {"last_hidden_state": self.normed(x), "logits": tf.cast(logits, wide_dtype(logits.dtype))}

    def cross_entropy(self, x: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss of all positions.

        Args:
            x: [b, S, H], the residual stream after the last block, or this rank's tokens of it.
            labels: int32 [b, S], the next tokens.

        Returns:
            Cross-entropy in nats and 1 where the label is the best class, both [b, S], fp32 (float64 for float64).
        """
        x = self._rows_of_output_layer(x)
        return output_cross_entropy(x, self.output_table, labels, self.first, self.ranks.group, "output")

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the logits of all positions over this rank's words, [b, S, words], for few positions at a time."""
        table = self.output_table
        logits = tf.matmul(self._rows_of_output_layer(x), table, transpose_b=True)
        ranks = self.ranks.group.size if self.ranks.divide_sequence else 1
        return tf.reshape(logits, [-1, ranks * dimension(x, 1), table.shape[0]])

    def _rows_of_output_layer(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(self.ranks.enter(self.normed(x), "output"), [-1, x.shape[-1]])
