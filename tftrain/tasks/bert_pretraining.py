"""BERT's pre-training (Devlin et al., arXiv 1810.04805): masked words and the next sentence, or masked words alone.

The loss is the cross-entropy summed over all masked words of the global batch and divided by their number, plus that of
the next-sentence predictions divided by the number of samples.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tftrain.architecture import flops
from tftrain.architecture.describe import describe
from tftrain.model.bert import LossTerms
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import exact_sum
from tftrain.tasks.task import Batch, Mean, Sums, Task, is_best

_MLM_LOSS = Mean("mlm_loss", "lm loss", "masked-LM loss", "mlm_sum", "mlm_weight", is_loss=True)
_MLM_ACCURACY = Mean("mlm_accuracy", "lm accuracy", "masked-LM accuracy", "mlm_correct", "mlm_weight")


class MaskedWords(Task):
    """An encoder with the head of masked words alone.

    Its sums are the cross-entropy of the masked words, in nats, their weights, the weights of those whose best
    prediction is right, and the weights of the examples, of which a row of a batch may have several.
    """

    sums = ("mlm_sum", "mlm_weight", "mlm_correct", "examples")
    means = (_MLM_LOSS, _MLM_ACCURACY)

    def batch_flops(self, batch: Batch) -> float:
        """Returns the operations of a batch, which may be shorter than the longest one."""
        length, slots = batch["input_ids"].shape[1], batch["masked_lm_positions"].shape[1]
        return flops.step(describe(self.config.model), length, slots, self.batch_size(batch))

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weights of the masked words, fp32 [1]."""
        return tf.reduce_sum(batch["masked_lm_weights"])[tf.newaxis]

    def loss_sums(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None) -> Sums:
        """Returns the sums of the residual stream after the last block, [b, S, H]."""
        terms = self.model.loss_terms(x, batch, deferred)
        return self.batch_sums(terms, batch) | self.of_sources(terms.mlm_entropy, batch["masked_lm_weights"], batch)

    @staticmethod
    def batch_sums(terms: LossTerms, batch: Batch) -> Sums:
        """Returns the sums of what the model predicts; those of losses have gradients.

        Args:
            batch: masked_lm_weights, float [b, P], 0 where a slot is unused. If present, example_weights, float [b], or
                sequence_weights, float [b, E] of up to E examples a row, weight the examples: 0 only fills the batch.
        """
        weights = tf.cast(batch["masked_lm_weights"], terms.mlm_entropy.dtype)
        return {
            "mlm_sum": exact_sum(terms.mlm_entropy * weights),
            "mlm_weight": tf.reduce_sum(weights),
            "mlm_correct": tf.reduce_sum(terms.mlm_correct * weights),
            "examples": tf.reduce_sum(_example_weights(terms, batch)),
        }

    @staticmethod
    def text_tokens(batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the text of a batch as it was before masking, without padding, [CLS] and [SEP]: int32 [tokens].

        The batch has the standard features, [n, S] and [n, P]; examples of weight 0 are left out. [CLS] is the first
        token of every sequence, [SEP] the last, so records of any vocabulary will do.
        """
        real = batch["example_weights"] > 0
        if not real.any():
            return np.zeros([0], np.int32)
        ids, mask = batch["input_ids"][real].copy(), batch["input_mask"][real] > 0
        rows, columns = np.nonzero(batch["masked_lm_weights"][real] > 0)
        ids[rows, batch["masked_lm_positions"][real][rows, columns]] = batch["masked_lm_ids"][real][rows, columns]
        last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
        begins, ends = ids[:, 0], ids[np.arange(len(ids)), last]
        return ids[mask & ~np.isin(ids, np.concatenate([begins, ends]))]


class BertPretraining(MaskedWords):
    """A BERT encoder with its two heads; two more sums are of the sentence pairs of the examples."""

    sums = ("mlm_sum", "mlm_weight", "mlm_correct", "nsp_sum", "nsp_correct", "examples")
    means = (
        _MLM_LOSS,
        Mean("nsp_loss", "nsp loss", "next-sentence loss", "nsp_sum", "examples", is_loss=True, in_evaluation=False),
        _MLM_ACCURACY,
        Mean("nsp_accuracy", "nsp accuracy", "next-sentence accuracy", "nsp_correct", "examples", in_training=False),
    )

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weights of the masked words and of the sentence pairs, fp32 [2]."""
        packed = batch.get("sequence_weights")
        pairs = tf.cast(self.batch_size(batch), tf.float32) if packed is None else tf.reduce_sum(packed)
        return tf.concat([super().loss_weights(batch), [pairs]], 0)

    @staticmethod
    def batch_sums(terms: LossTerms, batch: Batch) -> Sums:
        """Returns the sums, with next_sentence_labels, int32 [b], [b, 1] or [b, E], in the batch too."""
        labels = tf.reshape(batch["next_sentence_labels"], [-1])
        logits = tf.reshape(terms.nsp_logits, [-1, terms.nsp_logits.shape[-1]])
        weights = _example_weights(terms, batch)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return MaskedWords.batch_sums(terms, batch) | {
            "nsp_sum": exact_sum(entropy * weights),
            "nsp_correct": tf.reduce_sum(tf.cast(is_best(logits, labels), logits.dtype) * weights),
        }


def _example_weights(terms: LossTerms, batch: Batch) -> tf.Tensor:
    """Returns the weights of the examples, [n]: of each, also of several in a row."""
    weights, wide = batch.get("sequence_weights", batch.get("example_weights")), terms.mlm_entropy.dtype
    rows = tf.shape(terms.mlm_entropy)[:1]
    return tf.ones(rows, wide) if weights is None else tf.reshape(tf.cast(weights, wide), [-1])
