"""The fine-tuning of a decoder on prompts and their completions: it predicts the tokens of the completions alone."""

import numpy as np
import tensorflow as tf

from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.tasks.fine_tuning import FineTuning, example_weights, token_weights
from tftrain.tasks.task import Batch, Contents, Task


class Completion(FineTuning):
    """The next-token loss of completions, in nats; several examples, which do not see each other, share a row.

    A batch has input_ids, input_mask, sequence_ids, position_ids and labels, int32 [b, S]; a label is -1 where the next
    token is not one of a completion.
    """

    step_flops = Task.step_flops  # those of the output layer too
    weights = staticmethod(token_weights)

    def outputs(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None) -> tf.Tensor:
        """Returns the cross-entropy of each token, and 1 where the best one is right, [b, S, 2]; there is no head."""
        return tf.stack(self.model.cross_entropy(x, tf.maximum(batch["labels"], 0)), axis=-1)

    def loss_terms(self, outputs: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns both parts of the outputs, [b, S]."""
        return tuple(tf.unstack(outputs, axis=-1))

    def examples(self, batch: Batch) -> tf.Tensor:
        """Returns the number of examples that are packed in each row, [b]."""
        weights = example_weights(batch)
        return tf.cast(tf.reduce_max(batch["sequence_ids"], axis=1), weights.dtype) * weights

    def contents(self, batch: Batch) -> Contents:
        """Returns what is in the rows of a batch: examples, several in a row."""
        return super().contents(batch)._replace(samples=int(np.sum(np.max(batch["sequence_ids"], axis=1))))
