"""Extractive question answering (Rajpurkar et al., arXiv 1606.05250 and 1806.03822): where an answer begins and ends.

A context that does not fit is divided into windows that overlap. A window without the answer has the label 0, [CLS].
"""

import tensorflow as tf

from tftrain.input.source import ExampleSource
from tftrain.labelled import squad_answers
from tftrain.labelled.scorer import Scorer
from tftrain.tasks.fine_tuning import FineTuning
from tftrain.tasks.task import Batch


class QuestionAnswering(FineTuning):
    """The mean cross-entropy of both ends, in nats. A batch has labels, int32 [b, 2]: the first and the last token."""

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the cross-entropy and whether both ends are right, [b]; a token of padding is no end."""
        labels, mask = batch["labels"], batch["input_mask"]
        logits = tf.where(mask[:, None] > 0, tf.transpose(outputs, [0, 2, 1]), outputs.dtype.min / 2)  # [b, 2, S]
        entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), axis=-1)
        best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
        return entropy, tf.reduce_all(tf.equal(best, labels), axis=-1)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Two logits for each token."""
        return (self._config.data.max_seq_length, 2)

    def scorer(self, source: ExampleSource) -> Scorer:
        """Returns F1 and exact matches, as SQuAD's own script computes them."""
        return squad_answers.AnswerScorer(source.examples, self._config.fine_tuning)
