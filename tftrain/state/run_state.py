"""The state of a run: task, optimizer, loss scale and counters, and their tensors in a checkpoint.

The position in the data is `consumed_samples`, and the windows that are left out: the order of the examples is a
function of the seed and of these.
"""

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.architecture.describe import describe, pretrained
from tftrain.architecture.flops import head_in_layers
from tftrain.checkpoint import memory
from tftrain.checkpoint.tensor_slice import TensorData, TensorReader, TensorSlice
from tftrain.config.data import DataConfig
from tftrain.config.layer_split import most_segments, split_layers
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import ParallelConfig
from tftrain.data.left_out import NOTHING
from tftrain.host import devices
from tftrain.model.part import ModelPart, parts_of_stage
from tftrain.optim.loss_scale import make_loss_scale
from tftrain.optim.optimizer import Optimizer
from tftrain.optim.parameter_spec import specs
from tftrain.optim.schedule import run_length
from tftrain.optim.state import MASTER
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.state.spikes import SpikeMonitor
from tftrain.tasks.task import Task

STEP = "optimizer/step"
FORMATS = {tf.float32: "F32", tf.float64: "F64", tf.int64: "I64"}
SCALARS = ("learning_rate", "grad_norm", "loss_scale", "skipped", "is_nan", "culprit")
SUMS = "progress/interval_sums"  # a checkpoint of other sources has none of this run
COUNTERS = ("step", "consumed_samples", "skipped_steps", "nan_steps")


class StepInfo(NamedTuple):
    """The results of one update, equal on every rank; tensors on the device."""

    sums: tf.Tensor  # the task's sums over the global batch, fp32 [len(task.sums)]
    learning_rate: tf.Tensor  # fp32
    grad_norm: tf.Tensor  # fp32, unscaled, from before clipping
    loss_scale: tf.Tensor  # fp32
    skipped: tf.Tensor  # bool; loss or gradient was not finite, or a spike that is skipped, and nothing was updated
    is_nan: tf.Tensor  # bool; skipped, and not because of the loss scale alone
    culprit: tf.Tensor  # fp32, a whole number: what was not finite, for `Optimizer.culprit_name`
    bad_ranks: tf.Tensor  # fp32 [data parallel ranks], 1 where the loss of a rank's own samples was not finite
    requests: tf.Tensor  # fp32 [requests], see `tftrain.train.step.Requests`; the largest of all ranks
    before: tf.Tensor | None = None  # `packed` of the step before, on the host: reading it waits for nothing
    packed: tf.Tensor | None = None  # all but requests and before in one vector, fp32

    @staticmethod
    def packed_size(sums: int, ranks: int) -> int:
        """Returns the length of `packed` with so many sums and data parallel ranks."""
        return sums + len(SCALARS) + ranks

    def with_packed(self) -> "StepInfo":
        """Returns the same with `packed`."""
        scalars = [tf.cast(getattr(self, name), tf.float32) for name in SCALARS]
        return self._replace(packed=tf.concat([tf.cast(self.sums, tf.float32), scalars, self.bad_ranks], axis=0))

    def read(self, packed: np.ndarray) -> "StepInfo":
        """Returns the values of this step on the host, given its `packed` there."""
        first, last = self.sums.shape[0], len(packed) - self.bad_ranks.shape[0]
        scalars = dict(zip(SCALARS, packed[first:last], strict=True))
        flags = {name: bool(scalars.pop(name)) for name in ("skipped", "is_nan")}
        return self._replace(sums=packed[:first], bad_ranks=packed[last:], **scalars, **flags)


class Evaluation(NamedTuple):
    """Means over a held-out split."""

    means: dict[str, float | None]  # by name, see `Task.mean_values`; cross-entropies in nats
    unigram_nats: float | None  # entropy of the split's token frequencies; None if the task does not predict tokens
    examples: int  # how many were evaluated
    split_examples: int  # how many the split has
    # The scorer's, by name; or the loss of each source of a mixture, by "LOSS/SOURCE".
    scores: Mapping[str, float] = MappingProxyType({})
    outputs: np.ndarray | None = None  # predictions for the examples, fp32 [examples, ...]; None without a scorer


class Progress(tf.Module):
    """Counters of a run, on the device so that no step waits for the host.

    Attributes:
        step, consumed_samples: int64, updates tried so far, and their samples.
        skipped_steps: int64, updates left out because loss or gradient was not finite, or a spike.
        nan_steps: int64, those of them that no smaller loss scale would have made finite.
        interval_sums: fp64 [sums], the task's sums since the last logged step, without those of NaN steps.
    """

    def __init__(self, sums: int, sources: Sequence[str] = ()):
        super().__init__(name="progress")
        self._sums_name = SUMS + (f"/{zlib.crc32('/'.join(sources).encode()):08x}" if sources else "")
        self.step, self.consumed_samples, self.skipped_steps, self.nan_steps = (
            tf.Variable(0, dtype=tf.int64, trainable=False, name=name) for name in COUNTERS
        )
        self.interval_sums = tf.Variable(tf.zeros([sums], tf.float64), trainable=False, name="interval_sums")

    def count(self, samples: int, sums: tf.Tensor, skipped: tf.Tensor, is_nan: tf.Tensor) -> None:
        """Adds one update of `samples` samples with the task's sums, fp32, and whether it was skipped."""
        finite = tf.reduce_all(tf.math.is_finite(sums))
        self.step.assign_add(1)
        self.consumed_samples.assign_add(samples)
        self.skipped_steps.assign_add(tf.cast(skipped, tf.int64))
        self.nan_steps.assign_add(tf.cast(is_nan, tf.int64))
        self.interval_sums.assign_add(tf.cast(tf.where(finite, sums, tf.zeros_like(sums)), tf.float64))

    def take_interval(self) -> list[float]:
        """Returns the task's sums since the last call and starts over."""
        sums = self.interval_sums.numpy().tolist()
        self.interval_sums.assign(tf.zeros_like(self.interval_sums))
        return sums

    def state(self) -> dict[str, tf.Variable]:
        """Returns the counters by the names they have in a checkpoint."""
        return {f"progress/{name}": getattr(self, name) for name in COUNTERS} | {self._sums_name: self.interval_sums}


class Run:
    """Everything that lives as long as a training run, and its tensors in checkpoints.

    Attributes:
        config, mesh: of the phase that runs, resolved, with the sizes that the data gives; and the ranks.
        whole, timeline: the configuration with all phases, and what they are.
        jit: whether XLA compiles all of what computes: the micro-batches and the update. With tensor parallel ranks, it
            compiles pieces of the model at most.
        parts: the layers of this rank: the whole model, or the parts of its pipeline stage, in the order of the layers.
        shards_weights: whether ranks hold shards of the weights, which are gathered for each pass.
        sums_by_xla: whether the program that XLA compiles sums the gradients of several ranks.
        segments: of the backward pass of a global batch's last micro-batch, see `tftrain.train.segments`.
        task, optimizer: what is optimised, with this rank's part of the model; and over its variables.
        loss_scale, progress: which the loss is multiplied by, and the counters.
        left_out: windows of the data that rollbacks have left out.
        spikes: statistics of loss and gradient norm.
    """

    def __init__(self, task: Task, parts: list[ModelPart], mesh: Mesh, trains: bool = True):
        """Builds an optimizer over the model of a task, which has these parts of the model; see `new_run`.

        An evaluation, which never `trains`, has no moments and no average.
        """
        config = task.config
        self.config, self.mesh, self._described = config, mesh, describe(config.model).variables()
        self.whole, self.timeline = config, config.timeline
        self.jit = config.compiles_whole(devices.has_gpu())
        self.parts = parts
        self.shards_weights = config.shards_weights(mesh.split.size)
        self.sums_by_xla = config.compute.gradient_transport == "xla"
        self.segments = segments_of(config.model, config.parallel, self.jit and not self.sums_by_xla, mesh.data.size)
        self.task, model, parallel = task, task.model, config.parallel
        rounded = {name for name, each in model.parameters.items() if each.variable.dtype != tf.float32}
        if not self.shards_weights:
            named = model.named_variables()
            self._use_values_of_first_rank({name: named[name] for name in named if name not in rounded})
        is_split = parallel.splits_state and mesh.split.size > 1
        self.optimizer = Optimizer(
            config.optimizer,
            run_length(config.run.max_steps, self.timeline),
            list(specs(self._described, model.parameters, config.optimizer.param_groups)),
            mesh,
            parallel.state_split_strategy if is_split else None,
            self.shards_weights,
            trains,
        )
        state = self.optimizer.state
        if self.shards_weights:
            shards = {f"shard.{number}": master for number, master in enumerate(state.masters)}
            copies = {name: shards[name] for name, copied in zip(shards, state.replicated, strict=True) if copied}
            collectives.broadcast_variables(mesh.tensor, copies)
            collectives.broadcast_variables(mesh.replicas, shards)
        elif rounded:
            if not state.split:
                masters = zip(state.names, state.masters, strict=True)
                self._use_values_of_first_rank({name: master for name, master in masters if name in rounded})
            state.publish()  # With a split, each part of the weights comes from its owner.
        state.start_average()
        model.token_embedding.update_copy(mesh, "initial")
        self.loss_scale = make_loss_scale(config.compute, config.batch)
        self.progress = Progress(len(self.task.sums), self.task.source_names)
        self.left_out, self.spikes = NOTHING, SpikeMonitor(config.limits.spike_zscore)

    def begin_phase(self, number: int) -> None:
        """Goes on with the data and the batches of a phase, numbered from 0."""
        self.config = self.whole.phases[number]
        self.task.config = self.config

    def counters(self) -> dict[str, tf.Variable]:
        """Returns the state that is the same on every rank, by global name: all but master weights and moments."""
        return {STEP: self.optimizer.step, **self.loss_scale.state(), **self.progress.state()}

    def tensor_shapes(self) -> dict[str, list[int]]:
        """Returns the shape of every whole tensor of a checkpoint of this run, by name."""
        slots_of = self.optimizer.slots_of
        kinds = {each: (MASTER, *slots_of(each.name)) for each in self._described}
        shapes = {f"{kind}/{each.name}": list(each.shape) for each in kinds for kind in kinds[each]}
        return shapes | {name: variable.shape.as_list() for name, variable in self.counters().items()}

    def tensors_to_save(self) -> Iterator[TensorData]:
        """Yields the pieces that this rank saves and their elements, see `OptimizerState.tensors_to_save`."""
        for piece, variable in self._counter_pieces():
            if piece.replica_id == 0:
                yield TensorData(piece, np.asarray(variable).reshape(-1))
        yield from self.optimizer.state.tensors_to_save()

    def pieces_to_save(self) -> Iterator[TensorSlice]:
        """Yields the pieces of `tensors_to_save` without their elements, which costs nothing."""
        yield from (piece for piece, _ in self._counter_pieces() if piece.replica_id == 0)
        yield from self.optimizer.state.pieces_to_save()

    def restore_buffers(self) -> dict[TensorSlice, np.ndarray]:
        """Returns the pieces that `load` reads, each with flat memory: that of the variable if it is on the host."""
        counters = memory.arrays(piece for piece, _ in self._counter_pieces())
        return counters | self.optimizer.state.restore_buffers()

    def load(self, reader: TensorReader) -> None:
        """Restores this rank's part of a checkpoint that holds all of `tensor_shapes`."""
        for piece, variable in self._counter_pieces():
            if piece.name in reader.tensors:
                variable.assign(reader.read(piece))
        self.optimizer.state.load(reader)
        self.task.model.token_embedding.update_copy(self.mesh, "restored")

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Gives the model the average of its weights until the end of a `with` statement; every rank must call it."""
        state, embedding = self.optimizer.state, self.task.model.token_embedding
        state.swap_average()
        embedding.update_copy(self.mesh, "averaged")
        yield
        state.swap_average()
        embedding.update_copy(self.mesh, "trained")

    def _use_values_of_first_rank(self, variables: Mapping[str, tf.Variable]) -> None:
        """Assigns the values of the first rank that holds each part: another host's may differ in a bit."""
        shards = self.task.model.shards
        divided = {name: variable for name, variable in variables.items() if shards[name].is_divided}
        whole = {name: variable for name, variable in variables.items() if name not in divided}
        collectives.broadcast_variables(self.mesh.group("stage"), whole)
        collectives.broadcast_variables(self.mesh.data, divided)

    def _counter_pieces(self) -> Iterator[tuple[TensorSlice, tf.Variable]]:
        for name, variable in self.counters().items():
            shape, dtype = variable.shape.as_list(), FORMATS[variable.dtype]
            yield TensorSlice.block(name, shape, dtype, replica_id=self.mesh.rank), variable


def parts_of_rank(model: ModelConfig, data: DataConfig, parallel: ParallelConfig, mesh: Mesh) -> list[ModelPart]:
    """Returns the layers of a rank: one part, or several if the pipeline's schedule is interleaved."""
    return parts_of_stage(division_of(model, data, parallel), mesh.stage, mesh.pipeline_parallel_size)


def segments_of(model: ModelConfig, parallel: ParallelConfig, jit: bool, ranks: int) -> int:
    """Returns the segments of backward on so many data parallel ranks, see --backward_segments."""
    unsegmented = parallel.split_weights or parallel.pipeline_parallel_size > 1
    if parallel.backward_segments or not jit or ranks == 1 or unsegmented:
        return parallel.backward_segments or 1
    return most_segments(model.num_hidden_layers, describe(model).parameters)


def division_of(model: ModelConfig, data: DataConfig, parallel: ParallelConfig) -> tuple[int, ...]:
    """Returns the number of layers of each part of the pipeline."""
    if parallel.pipeline_parallel_size == 1:
        return (model.num_hidden_layers,)
    sizes = parallel.pipeline_parallel_size, parallel.virtual_pipeline_size
    head = head_in_layers(pretrained(model), data.max_seq_length, data.max_predictions_per_seq or 0)
    return split_layers(model.num_hidden_layers, *sizes, parallel.pipeline_split, head)
