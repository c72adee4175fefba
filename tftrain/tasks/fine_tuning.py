"""What the fine-tuning tasks share: a pre-trained encoder, a small new head, labelled examples, and scores."""

import abc
from typing import ClassVar

import tensorflow as tf

from tftrain.architecture import flops
from tftrain.architecture.describe import describe
from tftrain.config.train import DataConfig
from tftrain.input.source import ExampleSource
from tftrain.labelled import splits
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.tasks.task import Batch, Mean, Task

LOSS = Mean("task_loss", "task loss", "loss", "loss_sum", "weight", is_loss=True)
ACCURACY = Mean("task_accuracy", "accuracy", "accuracy", "correct", "weight", in_evaluation=False)


class FineTuning(Task):
    """A BERT encoder with the head of a task.

    Its sums are the losses of examples (or tokens), their weights, and the weights of those that are predicted right. A
    batch of an evaluation has example_weights, float [b], 0 for an example that only fills the batch.
    """

    sums: ClassVar = ("loss_sum", "weight", "correct", "examples")
    means: ClassVar = (LOSS, ACCURACY)

    def open_source(self, data: DataConfig, split: str, seed: int) -> ExampleSource:
        """Reads the labelled examples of a split, "train" or "eval"."""
        return splits.open_source(self._config, split)

    def has_held_out(self, data: DataConfig) -> bool:
        """Whether there are held-out examples."""
        settings = self._config.fine_tuning
        return settings.glue_task is not None or settings.eval_file is not None

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the sum of the weights of what the batch predicts, fp32 [1]."""
        return tf.reshape(tf.reduce_sum(tf.cast(self.weights(batch), tf.float32)), [1])

    def loss_sums(
        self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None = None, deferred: Deferred | None = None
    ) -> dict[str, tf.Tensor]:
        """Returns the sums and, for the scorer, the outputs; see `Task.compute`."""
        outputs = self.model.head_outputs(x, dropout, deferred)
        loss, correct = self.loss_terms(outputs, batch)
        weights = tf.cast(self.weights(batch), loss.dtype)
        return {
            "loss_sum": tf.reduce_sum(loss * weights),
            "weight": tf.reduce_sum(weights),
            "correct": tf.reduce_sum(tf.cast(correct, loss.dtype) * weights),
            "examples": tf.reduce_sum(tf.cast(_example_weights(batch), loss.dtype)),
            "outputs": self.to_score(outputs, batch),
        }

    def step_flops(self, samples: int) -> int:
        """Returns the operations of forward and backward over so many samples, without those of the head."""
        model, length = self._config.model, self._config.data.max_seq_length
        return 3 * samples * flops.forward(describe(model), length, 0).blocks

    @abc.abstractmethod
    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns loss and whether the prediction is right for each of the weights: float and bool, or numbers."""

    def weights(self, batch: Batch) -> tf.Tensor:
        """Returns the weights of what is predicted: by default one for each example, [b]."""
        return _example_weights(batch)

    def to_score(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns what the scorer needs of the head's outputs, fp32 [b, *output_shape]."""
        return tf.cast(outputs, tf.float32)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of what is scored of one example; by default the logits."""
        return (self._config.model.outputs,)


def _example_weights(batch: Batch) -> tf.Tensor:
    weights = batch.get("example_weights")
    return tf.ones([tf.shape(batch["input_ids"])[0]]) if weights is None else weights
