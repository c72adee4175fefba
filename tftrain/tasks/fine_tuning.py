"""The fine-tuning tasks: a pre-trained encoder, a small new head, labelled examples, and scores."""

import abc
from typing import ClassVar

import tensorflow as tf

from tftrain.architecture import flops
from tftrain.architecture.describe import describe
from tftrain.model.part import ModelPart
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import exact_sum
from tftrain.tasks.task import Batch, Mean, Sums, Task, is_best

# The features of each sequence, where an example has several.
FEATURES = ("input_ids", "input_mask", "segment_ids", "token_rows", "sequence_ids", "position_ids")
LOSS = Mean("task_loss", "task loss", "loss", "loss_sum", "weight", is_loss=True)
ACCURACY = Mean("task_accuracy", "accuracy", "accuracy", "correct", "weight", in_evaluation=False)


def token_weights(batch: Batch) -> tf.Tensor:
    """Returns 1 for each token with a label, and 0 for those without, whose label is negative: fp32 [b, S]."""
    tokens = tf.cast(batch["labels"] >= 0, tf.float32)
    return tokens * tf.cast(example_weights(batch), tf.float32)[:, None]


def example_weights(batch: Batch) -> tf.Tensor:
    """Returns 0 for a row that only fills the batch, and 1 for the others, [b]."""
    weights = batch.get("example_weights")
    return tf.ones([tf.shape(batch["input_ids"])[0]]) if weights is None else weights


class LabelledTask(Task):
    """A task on the examples of a file, each of one sequence of S tokens or of several, side by side in a batch."""

    def step_flops(self, samples: int) -> float:
        """Returns the operations of forward and backward over so many samples, without those of the head."""
        model, length = self.config.model, self.config.data.max_seq_length
        return 3 * samples * self.sequences * flops.forward(describe(model), length, 0).blocks

    def activation_shape(self, batch: Batch) -> tuple[int, ...]:
        """Returns the shape of the activations of an example's sequences, one after the other."""
        count = self._sequences(batch)
        tokens, width = self._activations(batch["input_ids"].shape[1] // count)
        return count * tokens, width

    def run_part(
        self,
        part: ModelPart,
        x: tf.Tensor | None,
        batch: Batch,
        dropout: DropoutKey | None = None,
        deferred: Deferred | None = None,
    ) -> tf.Tensor | Sums:
        """Runs some of the layers on all sequences, K b with K of an example; see `Task.run_part`."""
        count = self._sequences(batch)
        if count == 1:
            return super().run_part(part, x, batch, dropout, deferred)
        length = self.config.data.max_seq_length
        tokens, width = self._activations(length)
        sequences = {
            name: tf.reshape(feature, [-1, length, *feature.shape[2:]])
            for name, feature in batch.items()
            if name in FEATURES
        }
        if dropout is not None:  # The sequences of sample i are samples K i to K i + K - 1 for the masks.
            dropout = dropout._replace(first_sample=count * dropout.first_sample)
        x = self.model.embedding(sequences, dropout) if part.embedding else tf.reshape(x, [-1, tokens, width])
        x = self.model.run_blocks(x, sequences, dropout, part.blocks, deferred)
        return self.loss_sums(x, batch, dropout, deferred) if part.heads else tf.reshape(x, [-1, count * tokens, width])

    def _sequences(self, batch: Batch) -> int:
        return batch["input_ids"].shape[1] // self.config.data.max_seq_length


class FineTuning(LabelledTask):
    """A BERT encoder with the head of a task.

    Its sums are the losses of examples (or tokens), their weights, and the weights of those that are predicted right. A
    batch of an evaluation has example_weights, float [b], 0 for an example that only fills the batch.
    """

    sums: ClassVar = ("loss_sum", "weight", "correct", "examples")
    means: ClassVar = (LOSS, ACCURACY)
    # The number of examples in each row of a batch, [b], and the weights of what is predicted, by default of examples.
    examples = weights = staticmethod(example_weights)

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the sum of the weights of what the batch predicts, fp32 [1]."""
        return tf.reshape(tf.reduce_sum(tf.cast(self.weights(batch), tf.float32)), [1])

    def loss_sums(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None) -> Sums:
        """Returns the sums and, for the scorer, the outputs; see `Task.compute`."""
        outputs = self.outputs(x, batch, dropout, deferred)
        loss, correct = self.loss_terms(outputs, batch)
        weights = tf.cast(self.weights(batch), loss.dtype)
        return {
            "loss_sum": exact_sum(loss * weights),
            "weight": tf.reduce_sum(weights),
            "correct": tf.reduce_sum(tf.cast(correct, loss.dtype) * weights),
            "examples": tf.reduce_sum(tf.cast(self.examples(batch), loss.dtype)),
            "outputs": self.to_score(outputs, batch),
        } | self.of_sources(loss, weights, batch)

    def outputs(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None) -> tf.Tensor:
        """Returns what `loss_terms` and `to_score` take, by default the head's outputs; see `loss_sums`."""
        return self.model.head_outputs(x, batch, dropout, deferred)

    @abc.abstractmethod
    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns loss and whether the prediction is right for each of the weights: float and bool, or numbers."""

    def to_score(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns what the scorer needs of the head's outputs, fp32 [b, ...]."""
        return tf.cast(outputs, tf.float32)


class Classification(FineTuning):
    """One of several classes; cross-entropy in nats. A batch has labels, int32 [b]."""

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the cross-entropy and whether the best class is right, [b]."""
        labels = batch["labels"]
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        return entropy, is_best(outputs, labels)


class MultiLabel(FineTuning):
    """Any number of classes; the cross-entropy of each, in nats, averaged. A batch has labels, float32 [b, classes]."""

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the mean cross-entropy and whether all classes are right, [b]."""
        labels = tf.cast(batch["labels"], outputs.dtype)
        entropy = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs), axis=-1)
        return entropy, tf.reduce_all(tf.equal(outputs > 0, labels > 0), axis=-1)


class Regression(FineTuning):
    """A number; the squared error. A batch has labels, float32 [b]."""

    means: ClassVar = (LOSS,)

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the squared error, [b], and zeros: no prediction is right or wrong."""
        error = outputs[:, 0] - tf.cast(batch["labels"], outputs.dtype)
        return error * error, tf.zeros_like(error)


class TokenClassification(FineTuning):
    """A class for each word, such as the entities of a sentence; cross-entropy in nats.

    The first token of a word predicts its class. A batch has labels, int32 [b, S]: -1 where no word begins.
    """

    weights = staticmethod(token_weights)

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the cross-entropy and whether the best class is right, [b, S]."""
        labels = batch["labels"]
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), outputs)
        return entropy, is_best(outputs, labels)

    def to_score(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns the best class of each token, fp32 [b, S]."""
        return tf.cast(tf.argmax(outputs, axis=-1, output_type=tf.int32), tf.float32)


class QuestionAnswering(FineTuning):
    """Where an answer begins and ends (Rajpurkar et al., arXiv 1606.05250 and 1806.03822).

    The loss is the mean cross-entropy of both ends, in nats. A batch has labels, int32 [b, 2]: the first and the last
    token of the answer. A context that does not fit becomes several windows that overlap. In a window without the
    answer, both labels are 0, the position of [CLS].
    """

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the cross-entropy and whether both ends are right, [b]; a token of padding is no end."""
        labels, mask = batch["labels"], batch["input_mask"]
        logits = tf.where(mask[:, None] > 0, tf.transpose(outputs, [0, 2, 1]), outputs.dtype.min / 2)  # [b, 2, S]
        entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), axis=-1)
        return entropy, tf.reduce_all(is_best(logits, labels), axis=-1)
