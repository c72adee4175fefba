"""The pre-training loss as sums and weights, so that a loss over any split of a batch is the loss over the batch.

A mean over a micro-batch cannot be averaged with others: micro-batches differ in how many masked words they hold. The
train step adds these sums over micro-batches and ranks and divides by the global weights.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tftrain.model.bert import Outputs
from tftrain.model.embedding import SlicedLogits, sliced_cross_entropy


class LossSums(NamedTuple):
    """Sums over a micro-batch, scalars in float32 (float64 for float64); logarithms are natural.

    Attributes:
        mlm_sum: cross-entropy of the masked words, weighted.
        mlm_weight: weights of the masked words.
        mlm_correct: weights of the masked words whose best prediction is right.
        nsp_sum: cross-entropy of the sentence pairs, weighted.
        nsp_correct: weights of the pairs told right.
        examples: weights of the pairs; without weights, their number.
    """

    mlm_sum: tf.Tensor
    mlm_weight: tf.Tensor
    mlm_correct: tf.Tensor
    nsp_sum: tf.Tensor
    nsp_correct: tf.Tensor
    examples: tf.Tensor


def pretraining_loss_sums(outputs: Outputs, batch: Mapping[str, tf.Tensor]) -> LossSums:
    """Compares predictions with labels.

    Args:
        outputs: the model's predictions.
        batch: masked_lm_ids, int32 [b, P]; masked_lm_weights, float [b, P], 0 where a slot is unused;
            next_sentence_labels, int32 [b] or [b, 1]; and, if present, example_weights, float [b], 0 for an example
            that only fills the batch: it weighs the next-sentence loss, the masked words have weights of their own.

    Returns:
        LossSums. Only mlm_sum and nsp_sum have gradients.
    """
    wide = outputs.nsp_logits.dtype
    mlm_labels = tf.reshape(batch["masked_lm_ids"], [-1])
    mlm_weights = tf.cast(tf.reshape(batch["masked_lm_weights"], [-1]), wide)
    mlm_logits = outputs.mlm_logits
    if not isinstance(mlm_logits, SlicedLogits):
        mlm_logits = tf.reshape(mlm_logits, [-1, mlm_logits.shape[-1]])
    nsp_labels = tf.reshape(batch["next_sentence_labels"], [-1])
    nsp_weights = batch.get("example_weights")
    nsp_weights = tf.ones_like(nsp_labels, wide) if nsp_weights is None else tf.cast(nsp_weights, wide)

    mlm_sum, mlm_correct = _weighted_sums(mlm_logits, mlm_labels, mlm_weights)
    nsp_sum, nsp_correct = _weighted_sums(outputs.nsp_logits, nsp_labels, nsp_weights)
    return LossSums(
        mlm_sum=mlm_sum,
        mlm_weight=tf.reduce_sum(mlm_weights),
        mlm_correct=mlm_correct,
        nsp_sum=nsp_sum,
        nsp_correct=nsp_correct,
        examples=tf.reduce_sum(nsp_weights),
    )


def _weighted_sums(
    logits: tf.Tensor | SlicedLogits, labels: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy and correct predictions of logits [n, classes] against labels [n], both weighted and summed."""
    if isinstance(logits, SlicedLogits):
        entropy, correct = sliced_cross_entropy(logits, labels)
    else:
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels), weights.dtype)
    return tf.reduce_sum(entropy * weights), tf.reduce_sum(correct * weights)
