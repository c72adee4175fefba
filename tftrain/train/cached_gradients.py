"""The gradients of a loss that compares all samples of a global batch, of which only a micro-batch fits at a time.

A first pass computes the outputs of all micro-batches without gradients, and with the dropout of the update. From the
outputs of all data parallel ranks follow the loss and its gradient by each output. A second pass computes each
micro-batch again, and goes backward from this gradient: by the chain rule, that is the gradient of the whole loss
(gradient caching, Gao et al., arXiv 2101.06983). So neither memory nor loss depend on the micro-batch.

If a rank has one micro-batch of each global batch, nothing is computed twice: ranks exchange outputs between forward
and backward.
"""

import tensorflow as tf

from tftrain.state.run_state import Run
from tftrain.tasks.task import Batch
from tftrain.train.gradients import OUTPUT_GRADIENTS, Accumulation, Gradients, Position, compare
from tftrain.train.pipeline import PipelineGradients
from tftrain.train.segments import SegmentedGradients


def cached_gradients(
    run: Run, passes: Accumulation | PipelineGradients | SegmentedGradients, batch: Batch, position: Position
) -> Gradients:
    """Computes the gradients of this rank's share of a global batch whose samples are compared; see `Accumulation`.

    `passes` computes outputs and gradients; the gradients from those of the outputs in the batch, if there are any.
    """
    if run.task.batch_size(batch) == run.config.batch.micro_batch_size:
        return passes(batch, position)
    before, compared = passes.outputs(batch, position._replace(trains=False)), 0.0
    if run.task.model.part.heads:  # Other pipeline stages have no outputs.
        before, compared = compare(run.task, run.mesh.data, before, batch, position)
        batch = {**batch, OUTPUT_GRADIENTS: before}
    with tf.control_dependencies([before]):  # Else the second pass begins during the first one, or the loss.
        # What a function takes does not control what else it takes, once its call is inlined.
        batch = {name: tf.identity(each) for name, each in batch.items()}
    found = passes(batch, position)
    return found._replace(sums=found.sums + compared)
