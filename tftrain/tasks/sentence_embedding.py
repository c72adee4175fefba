"""Sentence embeddings that learn which texts belong together, by one of the losses of `embedding_losses`.

An embedding is what `TextEmbedder` gives, by default the mean of a text's hidden states, of length 1.
"""

import functools
from typing import ClassVar

import tensorflow as tf

from tftrain.host import devices
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import exact_sum
from tftrain.parallel.mesh import Group
from tftrain.tasks import embedding_losses
from tftrain.tasks.fine_tuning import LOSS, FineTuning, example_weights
from tftrain.tasks.in_batch_loss import Samples
from tftrain.tasks.task import Batch, Sums


class SentenceEmbedding(FineTuning):
    """A batch has the k texts of each sample side by side: input_ids, input_mask and segment_ids, integers [b, k S].

    They are an anchor, its partner, and k - 2 hard negatives. See `Samples` for labels and text_ids. If prompts are not
    pooled, it has `unpooled`, int32 [b, k]: the number of tokens that each text begins with so.
    """

    takes_numbers = False  # whether pairs that do not belong together have a loss

    @property
    def sequences(self) -> int:
        """The texts of a training sample; held-out samples may have others."""
        return 2 + (self.config.fine_tuning.negatives or 0)

    @property
    def compares_samples(self) -> bool:
        """Whether the loss compares all samples of the global batch."""
        return self.config.fine_tuning.compares_samples("embedding")

    @functools.cached_property
    def _loss(self) -> embedding_losses.Compared:
        config = self.config
        jit, model = config.compiles(devices.has_gpu()), config.model
        return embedding_losses.comparing(config.fine_tuning, model.vector_size, model.normalize_embeddings, jit)

    def compute(self, batch: Batch, dropout: DropoutKey | None = None) -> Sums:
        """Runs the model on a whole global batch, see `Task.compute`; a loss that compares samples has no gradient."""
        sums = super().compute(batch, dropout)
        return sums | self.compare(sums["outputs"], batch, Group(), trains=False)[0] if self.compares_samples else sums

    def compare(
        self, vectors: tf.Tensor, batch: Batch, group: Group, trains: bool = True
    ) -> tuple[Sums, tf.Tensor | None]:
        """Returns the sums of the losses, and the gradient of loss_sum over the global batch; see `Task.compare`."""
        samples = _samples(vectors, batch)
        loss, is_nearest, gradient = self._loss(samples, group, trains)
        correct = tf.reduce_sum(tf.cast(is_nearest, loss.dtype) * samples.weights)
        of_sources = self.of_sources(loss, samples.weights, batch)  # The other sums have the weights.
        totals = {name: value for name, value in of_sources.items() if name.startswith(self.means[0].total)}
        return {"loss_sum": exact_sum(loss * samples.weights), "correct": correct} | totals, gradient

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns loss and whether the partner is the nearest, [b]; zeros for a corpus, or if `compare` has them."""
        if not self.compares_samples and outputs.shape[1] > 1:
            normalized = self.config.model.normalize_embeddings
            return embedding_losses.own_terms(self.config.fine_tuning, _samples(outputs, batch), normalized)
        zeros = tf.zeros_like(example_weights(batch), outputs.dtype)
        return zeros, zeros

    def outputs(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None) -> tf.Tensor:
        """Returns the embeddings of the texts of each sample, [b, K, D], given hidden states [K b, S, H]."""
        count = self._sequences(batch)
        texts = {"input_mask": tf.reshape(batch["input_mask"], [-1, self.config.data.max_seq_length])}
        if "unpooled" in batch:
            texts["unpooled"] = tf.reshape(batch["unpooled"], [-1])
        vectors = self.model.head_outputs(x, texts, dropout, deferred)
        return tf.reshape(vectors, [-1, count, vectors.shape[-1]])

    def to_score(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the embeddings as they are."""
        return outputs


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
