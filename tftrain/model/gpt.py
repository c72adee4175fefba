"""GPT (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019): a decoder and its next-token loss.

The residual stream goes through blocks with causal attention, by default with the norms in front of the sub-layers. The
word embedding is the output layer too. The loss is over all positions, so it is computed with the logits, in chunks.
"""

from collections.abc import Mapping

import tensorflow as tf

from tftrain.config.train import ModelConfig
from tftrain.model.attention_cores import AttentionMask
from tftrain.model.output_layer import tied_cross_entropy
from tftrain.model.parameters import Parameters
from tftrain.model.transformer import Transformer
from tftrain.ops.shapes import dimension


class Gpt(Transformer):
    """The decoder, or a part of it."""

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        self.first_word = parameters.scope("embeddings").offset("word")

    def attention_mask(self, batch: Mapping[str, tf.Tensor]) -> AttentionMask:
        """Every token attends to itself and to those before it; no token is padding."""
        return AttentionMask(keys=tf.ones_like(batch["input_ids"], tf.int32), causal=True)

    def encode(self, batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, None]:
        """Returns the hidden states of a batch behind the final norm, [b, S, H], and None: nothing is pooled."""
        x = self.hidden_states(batch)
        x = x if self.final_norm is None else self.final_norm(x)
        return self.ranks.collect(x, "encoded"), None

    def cross_entropy(self, x: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss of all positions.

        Args:
            x: [b, S, H], the residual stream behind the last block, or this rank's tokens of it.
            labels: int32 [b, S], the next tokens.

        Returns:
            Cross-entropy in nats and 1 where the label is the best class, both [b, S], fp32 (float64 for float64).
        """
        x = self._rows_of_output_layer(x)
        entropy, correct = tied_cross_entropy(
            x, self.word, tf.reshape(labels, [-1]), self.first_word, self.ranks.group, "output"
        )
        return tf.reshape(entropy, tf.shape(labels)), tf.reshape(correct, tf.shape(labels))

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the logits of all positions over this rank's words, [b, S, words], for few positions at a time."""
        logits = tf.matmul(self._rows_of_output_layer(x), self.word, transpose_b=True)
        ranks = self.ranks.group.size if self.ranks.divide_sequence else 1
        return tf.reshape(logits, [-1, ranks * dimension(x, 1), self.word.shape[0]])

    def _rows_of_output_layer(self, x):
        if self.final_norm is not None:
            x = self.final_norm(x)
        return tf.reshape(self.ranks.enter(x, "output"), [-1, x.shape[-1]])
