"""BERT for pre-training (Devlin et al., arXiv 1810.04805): embedding, a list of blocks, two heads.

The dense layers of the two heads are replicated: every tensor parallel rank computes the same with them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tftrain.config import ModelConfig
from tftrain.model.attention_cores import AttentionMask
from tftrain.model.embedding import SlicedLogits
from tftrain.model.heads import MaskedLMHead, NextSentenceHead
from tftrain.model.parameters import Parameters
from tftrain.model.transformer import Transformer
from tftrain.ops.dropout import DropoutKey


class Outputs(NamedTuple):
    """What the model predicts for a micro-batch.

    Attributes:
        mlm_logits: [b, P, vocab], float32 (float64 in a float64 model), for the masked positions; SlicedLogits where
            tensor parallel ranks divide the vocabulary.
        nsp_logits: [b, 2], likewise; class 1 is a random next sentence.
    """

    mlm_logits: tf.Tensor | SlicedLogits
    nsp_logits: tf.Tensor


class BertPretrainer(Transformer):
    """The encoder, or a part of it, with the heads for masked words and the next sentence."""

    def _make_heads(self, parameters: Parameters, config: ModelConfig, vocab_size: int) -> None:
        self.masked_lm = MaskedLMHead(parameters.scope("masked_lm"), config, vocab_size)
        self.next_sentence = NextSentenceHead(
            parameters.scope("pooler"), parameters.scope("next_sentence"), config.hidden_size
        )

    def attention_mask(self, batch: Mapping[str, tf.Tensor]) -> AttentionMask:
        """Every token attends to all tokens of its sample; `input_mask`, int32 [b, S], is 0 for padding."""
        return AttentionMask(keys=tf.cast(batch["input_mask"], tf.int32))

    def call(
        self,
        batch: Mapping[str, tf.Tensor],
        dropout: DropoutKey | None = None,
        lookup_table: tf.Tensor | None = None,
    ) -> Outputs:
        """Runs the whole model on a micro-batch.

        Args:
            batch: input_ids, input_mask and segment_ids, int32 [b, S]; masked_lm_positions, int32 [b, P]. The model
                ignores other entries. When a function is traced, b may be unknown, and in inference S and P too.
            dropout, lookup_table: see `embed`.

        Returns:
            Outputs.

        Raises:
            ValueError: the sequence is longer than the position embedding.
        """
        x = self.embed(batch, dropout, lookup_table)  # [b, S, H]
        x = self.run_blocks(x, batch, dropout)  # [b, S, H]
        return self.heads(x, batch)

    def encode(self, batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the hidden states of a batch, [b, S, H], and the pooled first token, [b, H]; inference."""
        x = self._output(self.run_blocks(self.embed(batch, None), batch, None))
        return x, self.next_sentence.pooled(x)

    def heads(self, x: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> Outputs:
        """Maps the residual stream behind the last block, [b, S, H] or this rank's tokens of it, to logits."""
        x = self._output(x)
        mlm_logits = self.masked_lm(x, batch["masked_lm_positions"], self.word)  # [b, P, vocab]
        return Outputs(mlm_logits, self.next_sentence(x))

    def _output(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the encoder's output, [b, S, H], of the residual stream behind the last block."""
        return self.ranks.collect(x if self.final_norm is None else self.final_norm(x), "heads")
