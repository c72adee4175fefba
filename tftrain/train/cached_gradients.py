"""The gradients of a loss that compares all samples of a global batch, of which only a micro-batch fits at a time.

A first pass computes the outputs of all micro-batches without gradients, and with the dropout of the update. From the
outputs of all data parallel ranks follow the loss and its gradient by each output. A second pass computes each
micro-batch again, and goes backward from this gradient: by the chain rule, that is the gradient of the whole loss
(gradient caching, Gao et al., arXiv 2101.06983). So neither memory nor loss depend on the micro-batch.

If a rank has one micro-batch of each global batch, nothing is computed twice: ranks exchange outputs between forward
and backward.
"""

from typing import Protocol

import tensorflow as tf

from tftrain.state.run_state import Run
from tftrain.tasks.task import Batch
from tftrain.train.gradients import OUTPUT_GRADIENTS, Gradients, Position, compare


class TwoPasses(Protocol):
    """Computes outputs and gradients of this rank's share of a global batch, see `Accumulation`."""

    def __call__(self, batch: Batch, position: Position) -> Gradients:
        """Returns the gradients, from the output gradients in the batch, if there are any."""

    def outputs(self, batch: Batch, position: Position) -> tf.Tensor:
        """Returns the task's outputs for all samples, [n, ...]."""


class CachedGradients:
    """The gradients of this rank's share of a global batch whose samples are compared."""

    def __init__(self, run: Run, inner: TwoPasses):
        """Takes what computes the passes."""
        self._run, self._inner = run, inner

    def __call__(self, batch: Batch, position: Position) -> Gradients:
        """Computes the gradients of this rank's share of a global batch, times the loss scale; see `Accumulation`."""
        run = self._run
        if run.task.batch_size(batch) == run.config.batch.micro_batch_size:
            return self._inner(batch, position)
        outputs, compared = self._inner.outputs(batch, position._replace(trains=False)), 0.0
        if run.task.model.part.heads:  # Other pipeline stages have no outputs.
            gradient, compared = compare(run.task, run.mesh.data, outputs, batch, position)
            batch = {**batch, OUTPUT_GRADIENTS: gradient}
        with tf.control_dependencies([outputs]):  # Else activations of both passes could exist at once.
            found = self._inner(batch, position)
        return found._replace(sums=found.sums + compared)
