"""Sentence embeddings that learn which texts belong together, by one of the losses of `embedding_losses`.

An embedding is the mean of the hidden states of a text.
"""

import functools
from typing import ClassVar

import tensorflow as tf

from tftrain.host import devices
from tftrain.model.bert import embeddings
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import exact_sum
from tftrain.parallel.mesh import Group
from tftrain.tasks import embedding_losses
from tftrain.tasks.fine_tuning import LOSS, FineTuning, example_weights
from tftrain.tasks.in_batch_loss import Samples
from tftrain.tasks.task import Batch


class SentenceEmbedding(FineTuning):
    """A batch has the k texts of each sample side by side: input_ids, input_mask and segment_ids, int32 [b, k S].

    They are an anchor, its partner, and k - 2 hard negatives. See `Samples` for labels and text_ids.
    """

    takes_numbers = False  # whether pairs that do not belong together have a loss

    @property
    def sequences(self) -> int:
        """The texts of a training sample; held-out samples may have others."""
        return 2 + (self._config.fine_tuning.negatives or 0)

    @property
    def compares_samples(self) -> bool:
        """Whether the loss compares all samples of the global batch."""
        return self._config.fine_tuning.compares_samples("embedding")

    @functools.cached_property
    def _loss(self) -> embedding_losses.Compared:
        config = self._config
        jit = config.compiles(devices.has_gpu())
        return embedding_losses.comparing(config.fine_tuning, config.model.hidden_size, jit)

    def compute(self, batch: Batch, dropout: DropoutKey | None = None) -> dict[str, tf.Tensor]:
        """Runs the model on a whole global batch, see `Task.compute`; a loss that compares samples has no gradient."""
        sums = super().compute(batch, dropout)
        return sums | self.compare(sums["outputs"], batch, Group(), trains=False)[0] if self.compares_samples else sums

    def compare(
        self, vectors: tf.Tensor, batch: Batch, group: Group, trains: bool = True
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
        """Returns the sums of the losses, and the gradient of loss_sum over the global batch; see `Task.compare`."""
        samples = _samples(vectors, batch)
        loss, is_nearest, gradient = self._loss(samples, group, trains)
        correct = tf.reduce_sum(tf.cast(is_nearest, loss.dtype) * samples.weights)
        return {"loss_sum": exact_sum(loss * samples.weights), "correct": correct}, gradient

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns loss and whether the partner is the nearest, [b]; zeros if `compare` does, or of one text."""
        if not self.compares_samples and self._sequences(batch) > 1:
            samples = _samples(self.to_score(outputs, batch), batch)
            return embedding_losses.own_terms(self._config.fine_tuning, samples)
        zeros = tf.zeros_like(example_weights(batch), outputs.dtype)
        return zeros, zeros

    def to_score(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the embeddings of all texts, of length 1, given hidden states [k b, S, H]: [b, k, H]."""
        mask = tf.reshape(batch["input_mask"], [-1, self._config.data.max_seq_length])
        shape = [-1, self._sequences(batch), self._config.model.hidden_size]
        return tf.reshape(embeddings(outputs, mask), shape)


class ScoredPairs(SentenceEmbedding):
    """Pairs with a number each, which says how alike their texts are: none of them is right or wrong."""

    means: ClassVar = (LOSS,)
    takes_numbers = True

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of the scores; the correlation with the numbers chooses the best checkpoint."""
        return tuple(sorted(super().scored, key=lambda name: name != "spearman"))


def _samples(vectors: tf.Tensor, batch: Batch) -> Samples:
    weights = tf.cast(example_weights(batch), vectors.dtype)
    return Samples(vectors, weights, batch.get("labels"), batch.get("text_ids"))
