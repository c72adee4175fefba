"""Sentence embeddings that learn from pairs: the second text of a pair shall be nearer to the first than others are.

An embedding is the mean of the hidden states of a text. The loss is the cross-entropy of finding each first text's
partner among the second texts of its micro-batch, by cosine / temperature (Henderson et al., arXiv 1705.00652). So
`--micro_batch_size` decides how many negatives there are: a change of it changes the loss, a change of the ranks not.
"""

import tensorflow as tf

from tftrain.model.bert import embeddings
from tftrain.tasks.fine_tuning import FineTuning
from tftrain.tasks.task import Batch, is_best


class SentenceEmbedding(FineTuning):
    """A batch has both texts of each pair side by side: input_ids, input_mask and segment_ids, int32 [b, 2 S]."""

    sequences = 2

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the cross-entropy in nats and whether the partner is the nearest, [b]."""
        first, second = tf.unstack(self._embeddings(outputs, batch), axis=1)
        scores = tf.matmul(first, second, transpose_b=True) / self._config.fine_tuning.temperature  # [b, b]
        weights = batch.get("example_weights")
        if weights is not None:  # Pairs that only fill the batch are no negatives.
            scores = tf.where(weights[None, :] > 0, scores, scores.dtype.min / 2)
        own = tf.range(tf.shape(scores)[0])
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(own, scores)
        return entropy, is_best(scores, own)

    def _embeddings(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the normalized means of hidden states [2 b, S, H]: [b, 2, H]."""
        mask = tf.reshape(batch["input_mask"], [-1, self._config.data.max_seq_length])
        return tf.reshape(embeddings(outputs, mask), [-1, 2, self._config.model.hidden_size])

    def to_score(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the embeddings of both texts, fp32 [b, 2, H]."""
        return tf.cast(self._embeddings(outputs, batch), tf.float32)
