"""BERT (Devlin et al., arXiv 1810.04805): embedding, a list of blocks, and the heads of a task.

The dense layers of the heads are replicated: every tensor parallel rank computes the same with them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tftrain.config.train import ModelConfig
from tftrain.model.attention_cores import AttentionMask
from tftrain.model.block import SITES_PER_BLOCK
from tftrain.model.heads import Classifier, MaskedLMHead, Pooler
from tftrain.model.parameters import Parameters
from tftrain.model.transformer import Transformer
from tftrain.ops.dropout import DropoutKey, dropout_at, reference_dropout
from tftrain.ops.dtypes import wide_dtype


class LossTerms(NamedTuple):
    """What a loss needs of the model's predictions, float32 (float64 in a float64 model).

    Attributes:
        mlm_entropy: [b, P], the cross-entropy of the masked words in nats.
        mlm_correct: [b, P], 1 where the label is the best word, else 0; without gradient.
        nsp_logits: [b, 2], or [b, E, 2] of rows with up to E examples; class 1 is a random next sentence.
    """

    mlm_entropy: tf.Tensor
    mlm_correct: tf.Tensor
    nsp_logits: tf.Tensor


class BertEncoder(Transformer):
    """The encoder, or a part of it, without heads."""

    def attention_mask(self, batch: Mapping[str, tf.Tensor]) -> AttentionMask:
        """Every token attends to all tokens of its row; or of its example if there are `sequence_ids`, int32 [b, S].

        `input_mask`, int32 [b, S], is 0 for padding.
        """
        return AttentionMask(keys=tf.cast(batch["input_mask"], tf.int32), sequences=batch.get("sequence_ids"))

    def encode(self, batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the hidden states of a batch, [b, S, H], and the pooled first token, [b, H], if any; inference."""
        x = self.output(self.run_blocks(self.embed(batch, None), batch, None))
        return x, self._pooled(x)

    def _pooled(self, x: tf.Tensor) -> tf.Tensor | None:
        """Maps the encoder's output, [b, S, H], to the pooled first token, [b, H]."""
        return None

    def output(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the encoder's output, [b, S, H], of the residual stream behind the last block."""
        return self.ranks.collect(x if self.final_norm is None else self.final_norm(x), "heads")


class BertPretrainer(BertEncoder):
    """The encoder with the heads for masked words and the next sentence."""

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        head = self.architecture.head
        self.masked_lm = MaskedLMHead(parameters.scope("masked_lm"), head("masked_lm"), config)
        self.pooler = Pooler(parameters.scope("pooler"), head("pooler")[""])
        self.next_sentence = Classifier(parameters.scope("next_sentence"), head("next_sentence")[""])

    def loss_terms(self, x: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> LossTerms:
        """Maps the residual stream after the last block, [b, S, H] or this rank's tokens of it, to terms of the loss.

        Logits of all masked words do not exist at once.

        Args:
            x: see above.
            batch: masked_lm_positions and masked_lm_ids, int32 [b, P]; sequence_starts if a row has several examples.
        """
        x = self.output(x)
        of_words = self.masked_lm.cross_entropy(x, batch["masked_lm_positions"], batch["masked_lm_ids"], self.word)
        return LossTerms(*of_words, self.next_sentence_logits(x, batch))

    def next_sentence_logits(self, x: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Maps the encoder's output, [b, S, H], to logits, [b, 2]; class 1 is a random next sentence."""
        return self.next_sentence(self.pooler(x, batch.get("sequence_starts")))

    def _pooled(self, x: tf.Tensor) -> tf.Tensor:
        return self.pooler(x)


class BertClassifier(BertEncoder):
    """The encoder with the head of a fine-tuned task: a classifier of the pooled token, or of every token, or none."""

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        pooler, classifier = self.architecture.head("pooler"), self.architecture.head("classifier")
        self.pooler = Pooler(parameters.scope("pooler"), pooler[""]) if pooler else None
        self.classifier = Classifier(parameters.scope("classifier"), classifier[""]) if classifier else None
        self._dropout_rate = config.hidden_dropout_prob
        self._dropout_site = SITES_PER_BLOCK * (config.num_hidden_layers + 1)

    def task_outputs(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the head's numbers for a batch, see `head_outputs`; inference."""
        return self.head_outputs(self.run_blocks(self.embed(batch, None), batch, None), None)

    def head_outputs(self, x: tf.Tensor, dropout: DropoutKey | None) -> tf.Tensor:
        """Maps the residual stream behind the last block, [b, S, H] or this rank's tokens of it, to the head's numbers.

        Args:
            x: see above.
            dropout: of what the classifier reads; None in inference.

        Returns:
            Logits, [b, outputs] or [b, S, outputs]; the encoder's output, [b, S, H], if the task has no classifier.
            float32 (float64 in a float64 model).
        """
        x = self.output(x)
        if self.pooler is not None:
            x = self.pooler(x)
        if self.classifier is None:
            return tf.cast(x, wide_dtype(x.dtype))
        return self.classifier(reference_dropout(x, dropout_at(dropout, self._dropout_rate, self._dropout_site)))

    def _pooled(self, x: tf.Tensor) -> tf.Tensor | None:
        return None if self.pooler is None else self.pooler(x)
