"""Sentence embeddings that learn from pairs: the second text of a pair shall be nearer to the first than others are.

An embedding is the mean of the hidden states of a text. The loss is the cross-entropy of finding each first text's
partner among the second texts of the global batch, by cosine / temperature (`in_batch_loss`).
"""

import functools

import tensorflow as tf

from tftrain.host import devices
from tftrain.model.bert import embeddings
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import exact_sum
from tftrain.parallel.mesh import Group
from tftrain.tasks.fine_tuning import FineTuning, example_weights
from tftrain.tasks.in_batch_loss import InBatchLoss
from tftrain.tasks.task import Batch


class SentenceEmbedding(FineTuning):
    """A batch has both texts of each pair side by side: input_ids, input_mask and segment_ids, int32 [b, 2 S]."""

    sequences = 2
    compares_samples = True

    @functools.cached_property
    def _loss(self) -> InBatchLoss:
        return InBatchLoss(self._config.fine_tuning.temperature, self._config.compiles(devices.has_gpu()))

    def compute(self, batch: Batch, dropout: DropoutKey | None = None) -> dict[str, tf.Tensor]:
        """Runs the model on a whole global batch, see `Task.compute`; the total of the loss has no gradient."""
        sums = super().compute(batch, dropout)
        return sums | self.compare(sums["outputs"], batch, Group(), trains=False)[0]

    def compare(
        self, vectors: tf.Tensor, batch: Batch, group: Group, trains: bool = True
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
        """Returns the sums of the losses, and the gradient of loss_sum over the global batch; see `Task.compare`."""
        weights = tf.cast(example_weights(batch), vectors.dtype)
        loss, is_nearest, gradient = self._loss(vectors, weights, group, trains)
        correct = tf.reduce_sum(tf.cast(is_nearest, weights.dtype) * weights)
        return {"loss_sum": exact_sum(loss * weights), "correct": correct}, gradient

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns zeros, [b]: `compare` computes the loss of all samples at once."""
        zeros = tf.zeros_like(example_weights(batch), outputs.dtype)
        return zeros, zeros

    def to_score(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the embeddings of a sample's texts, of length 1, given hidden states [k b, S, H]: [b, k, H]."""
        mask = tf.reshape(batch["input_mask"], [-1, self._config.data.max_seq_length])
        return tf.reshape(embeddings(outputs, mask), [-1, self._sequences(batch), self._config.model.hidden_size])
