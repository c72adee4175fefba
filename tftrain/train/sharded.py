"""Forward and backward block by block, where each rank holds a shard of the weights (ZeRO-3, arXiv 1910.02054).

The shards are the master weights. A bucket of them has weights of one unit: the token embedding, the other embeddings,
a block, or what follows the blocks.

A visit is a forward or backward pass of one part of the model: the embedding, a block, or the heads. The weights of a
part are gathered before its visit and released afterwards, unless the next visits need them. While a part computes, the
weights of the next `--prefetch_blocks` parts are gathered, and the gradients of the part before are summed. Each part
is a compiled function, as in a pipeline, so collectives run between and beside the parts. With full activation
checkpointing, the backward visit of a block begins with its forward pass; `tftrain.model.checkpointing` would keep the
weights.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tftrain.model.gathered_weights import ReadAgain, fill, release
from tftrain.model.part import ModelPart
from tftrain.optim.state_layout import EMBEDDINGS, HEADS, TOKENS, unit_of
from tftrain.parallel.gradient_reduction import GradientReduction
from tftrain.state.run_state import Run
from tftrain.tasks.task import Batch
from tftrain.train.gradients import (
    OUTPUT_GRADIENTS,
    Accumulation,
    Gradients,
    MicroBatch,
    Position,
    compare,
    without_gradients,
)
from tftrain.train.stage import CompiledStage, Forward


class Visit(NamedTuple):
    """A pass of one part; the heads run forward and backward in one."""

    chunk: int  # index of the part
    forward: bool
    backward: bool
    buckets: Sequence[int]  # that hold the weights which it reads


class ShardedModel:
    """The parts of a run's model, whose weights are gathered for each visit."""

    def __init__(self, run: Run):
        """Traces nothing yet; the run holds shards of the weights."""
        config, layers = run.config, range(run.config.model.num_hidden_layers)
        blocks = [ModelPart((layer,), embedding=False, heads=False) for layer in layers]
        parts = [ModelPart((), heads=False), *blocks, ModelPart((), embedding=False)]
        self._run, self._stage = run, CompiledStage(run.task, parts, run.jit, ReadAgain())
        self._state, self._ahead = run.optimizer.state, config.parallel.prefetch_blocks
        self._buckets = list(map(self._buckets_of, parts))
        self._recomputes = config.compute.activation_checkpointing == "full"
        self._wire = tf.float16 if config.compute.hvd_fp16_compression else tf.float32

    def forward(self, micro: MicroBatch) -> Forward:
        """Returns the forward pass of the heads, without gradients; see `CompiledStage.forward`."""
        heads, last, order = len(self._buckets) - 1, None, []
        for visit in self._with_weights(self._visits(range(heads + 1), forward=True), order, "forward_weights"):
            last = self._stage.forward(visit.chunk, last and last.output, micro)
            order[:] = [last.output]
        return last

    def gradients(self, micro: MicroBatch) -> Gradients:
        """Computes the gradients of a micro-batch: this rank's shard of each bucket, summed over the ranks, in fp32."""
        heads, forwards, upstream, order = len(self._buckets) - 1, [], micro.features.get(OUTPUT_GRADIENTS), []
        micro = micro._replace(features=without_gradients(micro.features))
        visits = self._visits(range(heads), forward=True)
        visits += [Visit(heads, True, True, self._buckets[heads])]
        visits += self._visits(reversed(range(heads)), backward=True)
        shards: dict[int, tf.Tensor] = {}
        travelling: deque[list[tf.Tensor]] = deque()
        for visit in self._with_weights(visits, order):
            chunk, is_recomputed = visit.chunk, self._recomputes and 0 < visit.chunk < heads
            if visit.forward:
                forwards.append(self._stage.forward(chunk, forwards[-1].output if forwards else None, micro))
                order[:] = [forwards[-1].output]
            if chunk == heads:
                sums = forwards[-1].sums
                if self._run.task.compares_samples and upstream is None:
                    task, outputs = self._run.task, forwards[-1].output
                    upstream, compared = compare(task, self._run.mesh.data, outputs, micro.features, micro.position)
                    sums += compared
            if visit.backward:
                # The gradients of one part travel while the next one computes, and not those of more.
                with tf.control_dependencies(travelling.popleft() if len(travelling) > 1 else []):
                    last_forward = forwards.pop()
                    if is_recomputed:
                        with tf.control_dependencies([upstream]):
                            last_forward = self._stage.forward(chunk, last_forward.inputs, micro)
                    backward = self._stage.backward(last_forward, upstream)
                upstream, of_variables = backward.of_inputs, backward.of_variables
                order[:] = [*of_variables.values(), *([] if upstream is None else [upstream])]
                summed = self._reduced(chunk, of_variables)
                for bucket, shard in summed.items():
                    shards[bucket] = shards[bucket] + shard if bucket in shards else shard
                travelling.append(list(summed.values()))
        return Gradients([shards[bucket] for bucket in range(len(shards))], None, sums)

    def _buckets_of(self, part: ModelPart) -> list[int]:
        """Returns the buckets of the weights of a part."""
        names, is_tied = self._state.names, self._run.task.model.architecture.tied
        units = [f"layer_{index:02d}" for index in part.blocks]
        units += [TOKENS, EMBEDDINGS] * part.embedding + [HEADS, *[TOKENS] * is_tied] * part.heads
        buckets = enumerate(self._state.split.buckets)
        return [number for number, bucket in buckets if unit_of(names[bucket.tensors[0]]) in units]

    def _reduced(self, chunk: int, gradients: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Sums a part's gradients, by the index of a variable, for all of a bucket or for none, over the ranks.

        Returns:
            For each bucket with gradients, this rank's shard of the sum, flat, in fp32.
        """
        split, name = self._state.split, f"gradients.{chunk}"
        used = [each for each in self._buckets[chunk] if not gradients.keys().isdisjoint(split.buckets[each].tensors)]
        return {number: split.reduce(number, gradients, f"{name}.{number}", self._wire) for number in used}

    def _visits(self, chunks: Iterable[int], forward: bool = False, backward: bool = False) -> list[Visit]:
        """Returns a visit of each part; the backward pass of the embedding, the first one, reads no weights."""
        return [Visit(chunk, forward, backward, self._buckets[chunk] if forward or chunk else ()) for chunk in chunks]

    def _with_weights(self, visits: Sequence[Visit], order: list[tf.Tensor], name: str = "weights") -> Iterator[Visit]:
        """Yields each visit when its weights are gathered; `order` has the results of the visit before."""
        gathered: set[int] = set()
        for number, visit in enumerate(visits):
            needed = [bucket for each in visits[number : number + 1 + self._ahead] for bucket in each.buckets]
            for bucket in needed:
                if bucket not in gathered:
                    with tf.control_dependencies(order):
                        for variable, value in self._state.gathered(bucket, f"{name}.{bucket}.{number}"):
                            fill(variable, value)
                    gathered.add(bucket)
            yield visit
            soon = {bucket for each in visits[number + 1 : number + 2 + self._ahead] for bucket in each.buckets}
            for bucket in sorted(gathered - soon):
                for index in self._state.split.buckets[bucket].tensors:
                    release(self._state.targets[index])
            gathered &= soon


class ShardedGradients(Accumulation):
    """The gradients of this rank's share of a global batch; those of each micro-batch are summed over the ranks."""

    def __init__(self, run: Run, reduction: GradientReduction):
        super().__init__(run, reduction)
        self._model = ShardedModel(run)
        self._compiled, self._compiled_outputs = self._accumulate, self._outputs  # The parts alone are compiled.

    def _outputs_of(self, batch: Batch, first_sample: tf.Tensor, position: Position) -> tf.Tensor:
        return self._model.forward(MicroBatch(batch, first_sample, position)).outputs

    def _buffer_shapes(self) -> list[Sequence[int]]:
        return [master.shape for master in self._run.optimizer.state.masters]

    def _reduced_micro_batch(self, batch: Batch, first_sample: tf.Tensor, position: Position) -> Gradients:
        return self._model.gradients(MicroBatch(batch, first_sample, position))
