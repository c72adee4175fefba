"""Backward in segments of the model, so that the gradients of one travel while the next ones are computed.

A whole micro-batch that XLA compiles gives all gradients at its end. Here the last micro-batch of a global batch runs
as a pipeline of one stage does: part by part, forward and then backward, each part an XLA cluster of its own. The
gradients of a part are summed over the ranks as soon as its backward ends (Li et al., arXiv 2006.15704, section 3.2.3).
"""

from collections.abc import Container, Iterator

import tensorflow as tf

from tftrain.config.layer_split import split_layers
from tftrain.model.gathered_weights import ReadAgain
from tftrain.model.part import parts_of_stage
from tftrain.parallel.gradient_reduction import GradientReduction
from tftrain.parallel.sparse_rows import SparseRows
from tftrain.schedules import orders
from tftrain.state.run_state import Run
from tftrain.tasks.task import Batch
from tftrain.train.device_batches import decoded
from tftrain.train.gradients import Accumulation, Gradients, Position, added
from tftrain.train.pipeline import PartOfShare, StageGraph
from tftrain.train.stage import CompiledStage


class SegmentedGradients:
    """The gradients of this rank's share of a global batch; the last micro-batch's come segment by segment."""

    def __init__(self, run: Run, reduction: GradientReduction):
        """Traces nothing yet; for `reduction`, see `Accumulation`."""
        self._run, self._reduction, segments = run, reduction, run.segments
        self._accumulation = Accumulation(run, reduction)
        parts = parts_of_stage(split_layers(run.config.model.num_hidden_layers, 1, segments), 0, 1)
        # What backward keeps of a compiled part is a copy, which a weight need not have.
        self._stage = CompiledStage(run.task, parts, run.jit, ReadAgain())
        self._table = orders.table("interleaved", 1, 1, segments)
        self._computations: list[tf.Operation] = []  # the calls of the last graph, in their order

    def __call__(self, batch: Batch, position: Position) -> Gradients:
        """Computes the gradients of this rank's share of a global batch, times the loss scale; see `Accumulation`."""
        size, samples = self._run.config.batch.micro_batch_size, self._run.task.batch_size(batch)
        if samples == size:
            return self._last_micro_batch(batch, samples, position)
        earlier = self._accumulation(batch, position, but_last=True)
        # Else the last one would hold its activations while the others are computed.
        with tf.control_dependencies([earlier.sums, *earlier.dense]):
            last = self._last_micro_batch({name: each[-size:] for name, each in batch.items()}, samples, position)
        return added(earlier, last, self._accumulation.buffer_dtype)

    def outputs(self, batch: Batch, position: Position) -> tf.Tensor:
        """Returns the task's outputs for this rank's share of a global batch, see `Accumulation`."""
        return self._accumulation.outputs(batch, position)

    def begin_sums_early(self) -> None:
        """Lets a segment start only after the sums of the segments before it have begun; call after their collectives.

        Else another thread may launch the segment before a sum is in the GPU's stream, where it would wait for the
        whole segment. The counter before a sum touches no stream, so waiting for it costs nothing.
        """
        number = {each: index for index, each in enumerate(self._computations)}
        for count in (each for each in _operations() if each.type == "TftrainCount"):
            following = 1 + max((number[each] for each in _computed_by(count, number)), default=len(number))
            if following < len(number):
                self._computations[following]._add_control_input(count)

    def _last_micro_batch(self, batch: Batch, samples: int, position: Position) -> Gradients:
        """Returns the gradients of the last micro-batch of this rank's `samples`."""
        run, end = self._run, (self._run.mesh.data.rank + 1) * samples
        tokens, ids = run.task.model.token_embedding, decoded(batch)["input_ids"]
        rows = tokens.rows(ids) if self._accumulation.sends_rows else None
        part = PartOfShare(end, rows and rows.values)
        graph = StageGraph(self._stage, run.mesh, self._table, batch, position, None, part=part)
        before = len(_operations())
        result = graph.run()
        self._computations = [each for each in _operations()[before:] if each.type.endswith("PartitionedCall")]
        if rows:
            rows = SparseRows(rows.ids, tf.reshape(graph.of_inputs, [rows.ids.shape[0], -1]))
        dense = self._reduction.sum(result.dense) if self._reduction.each_micro_batch else result.dense
        return Gradients(dense, rows, result.sums)


def _operations() -> list[tf.Operation]:
    return tf.compat.v1.get_default_graph().get_operations()


def _computed_by(count: tf.Operation, computations: Container[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields the computations whose results a counter counts, without those before another counter."""
    waiting, seen = [each.op for each in count.inputs], set()
    while waiting:
        each = waiting.pop()
        if each in computations:
            yield each
        elif each not in seen and each.type != count.type:
            seen.add(each)
            waiting += [given.op for given in each.inputs]
