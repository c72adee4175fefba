"""A class for each word, such as the entities of a sentence. The first token of a word predicts its class."""

import tensorflow as tf

from tftrain.input.source import ExampleSource
from tftrain.labelled import scorers
from tftrain.labelled.scorer import Scorer
from tftrain.tasks.fine_tuning import FineTuning
from tftrain.tasks.task import Batch


class TokenClassification(FineTuning):
    """Cross-entropy of words in nats. A batch has labels, int32 [b, S]: -1 where no word begins."""

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the cross-entropy and whether the best class is right, [b, S]."""
        labels = batch["labels"]
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), outputs)
        return entropy, tf.equal(tf.argmax(outputs, axis=-1, output_type=labels.dtype), labels)

    def weights(self, batch: Batch) -> tf.Tensor:
        """Returns 1 for the first token of each word, [b, S]."""
        words = tf.cast(batch["labels"] >= 0, tf.float32)
        weights = batch.get("example_weights")
        return words if weights is None else words * tf.cast(weights, tf.float32)[:, None]

    def to_score(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the best class of each token, fp32 [b, S]."""
        return tf.cast(tf.argmax(outputs, axis=-1, output_type=tf.int32), tf.float32)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """One class for each token."""
        return (self._config.data.max_seq_length,)

    def scorer(self, source: ExampleSource) -> Scorer:
        """Returns the F1 of entities."""
        return scorers.EntityScorer(source.examples, self._config.model.labels)
