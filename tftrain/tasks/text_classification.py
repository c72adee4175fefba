"""Tasks that predict something of a whole text or pair of texts: a class, classes, or a number."""

from typing import ClassVar

import tensorflow as tf

from tftrain.input.source import ExampleSource
from tftrain.labelled import scorers
from tftrain.labelled.scorer import Scorer
from tftrain.tasks.fine_tuning import LOSS, FineTuning
from tftrain.tasks.task import Batch


class Classification(FineTuning):
    """One of several classes; cross-entropy in nats. A batch has labels, int32 [b]."""

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the cross-entropy and whether the best class is right, [b]."""
        labels = batch["labels"]
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        return entropy, tf.equal(tf.argmax(outputs, axis=-1, output_type=labels.dtype), labels)

    def scorer(self, source: ExampleSource) -> Scorer:
        """Returns accuracy, F1 and Matthews' correlation."""
        return scorers.ClassScorer(source.examples, self._config.model.labels)


class MultiLabel(FineTuning):
    """Any number of classes; the cross-entropy of each, in nats, averaged. A batch has labels, float32 [b, classes]."""

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the mean cross-entropy and whether all classes are right, [b]."""
        labels = tf.cast(batch["labels"], outputs.dtype)
        entropy = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs), axis=-1)
        return entropy, tf.reduce_all(tf.equal(outputs > 0, labels > 0), axis=-1)

    def scorer(self, source: ExampleSource) -> Scorer:
        """Returns micro and macro F1 and the share of exact matches."""
        return scorers.MultiLabelScorer(source.examples, self._config.model.labels)


class Regression(FineTuning):
    """A number; the squared error. A batch has labels, float32 [b]."""

    means: ClassVar = (LOSS,)

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the squared error, [b], and zeros: no prediction is right or wrong."""
        error = outputs[:, 0] - tf.cast(batch["labels"], outputs.dtype)
        return error * error, tf.zeros_like(error)

    def scorer(self, source: ExampleSource) -> Scorer:
        """Returns Pearson's and Spearman's correlation."""
        return scorers.NumberScorer(source.examples)
