"""The pre-training of a decoder: it predicts every next token.

The loss is the cross-entropy summed over all predicted tokens of the global batch and divided by their number.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import exact_sum
from tftrain.tasks.task import Batch, Mean, Sums, Task


class CausalPretraining(Task):
    """A decoder and its next-token loss.

    Its sums are the cross-entropy of the tokens, in nats, their number, and the number of tokens whose best prediction
    is right; samples that only fill the batch do not count. A batch has input_ids and labels, int32 [b, S]: the label
    of a token is the token after it. A batch of an evaluation may have example_weights, float [b], 0 for a sample that
    only fills the batch.
    """

    sums = ("lm_sum", "lm_weight", "lm_correct", "examples")
    means = (
        Mean("lm_loss", "lm loss", "language-model loss", "lm_sum", "lm_weight", is_loss=True),
        Mean("lm_accuracy", "lm accuracy", "next-token accuracy", "lm_correct", "lm_weight"),
    )

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the number of the tokens, fp32 [1]."""
        return tf.reshape(tf.cast(tf.size(batch["labels"]), tf.float32), [1])

    def loss_sums(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None) -> Sums:
        """Returns the sums of the residual stream after the last block, [b, S, H]."""
        entropy, correct = self.model.cross_entropy(x, batch["labels"])
        weights = batch.get("example_weights")
        weights = tf.ones_like(entropy[:, 0]) if weights is None else tf.cast(weights, entropy.dtype)
        return {
            "lm_sum": exact_sum(entropy * weights[:, tf.newaxis]),
            "lm_weight": tf.reduce_sum(weights) * batch["labels"].shape[1],
            "lm_correct": tf.reduce_sum(tf.reduce_sum(correct, axis=1) * weights),
            "examples": tf.reduce_sum(weights),
        } | self.of_sources(entropy, weights[:, tf.newaxis] * tf.ones_like(entropy), batch)

    def text_tokens(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the tokens that a batch's samples predict, int [n]."""
        labels = batch["labels"]
        weights = batch.get("example_weights")
        return labels.reshape(-1) if weights is None else labels[weights > 0].reshape(-1)
