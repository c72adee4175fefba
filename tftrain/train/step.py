"""One update: compute the gradients, reduce them over the ranks, update the weights.

The two parts that compute may be XLA clusters; the collectives between them are not.
"""

import functools
import math
from typing import NamedTuple

import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.gradient_reduction import GradientReduction, all_reduce_sum
from tftrain.state.run_state import Run, StepInfo
from tftrain.tasks.task import Batch
from tftrain.train.cached_gradients import cached_gradients
from tftrain.train.device_batches import DeviceBatch
from tftrain.train.gradients import Accumulation, Position
from tftrain.train.pipeline import PipelineGradients
from tftrain.train.segments import SegmentedGradients
from tftrain.train.sharded import ShardedGradients


class Requests(NamedTuple):
    """Numbers that travel with a step, fp32 scalars: every rank gets the largest number of all ranks.

    The order of the fields is the layout of the one vector that the ranks reduce.
    """

    signal: float = 0.0  # number of the signal that a rank has received
    save: float = 0.0  # 1 if the chief's clock says that a checkpoint is due
    # From which loss and gradient norm on the update is skipped, with --on_spike=skip; the same on all ranks.
    loss_limit: float = math.inf
    norm_limit: float = math.inf


class TrainStep:
    """The compiled update of a run; `clock` has the times of this pipeline stage's last step with --trace_pipeline."""

    def __init__(self, run: Run):
        self._run, mesh, state = run, run.mesh, run.optimizer.state
        self._skips_spikes = run.config.limits.on_spike == "skip"
        self._wire = tf.float16 if run.config.compute.hvd_fp16_compression else tf.float32
        each_micro_batch = run.config.parallel.zero_stage >= 2 and state.split is not None
        stores, in_program = (mesh.tensor, state.replicated, state.summed), run.sums_by_xla and mesh.data.size > 1
        self._reduction = GradientReduction(mesh.data, self._wire, state.split, each_micro_batch, *stores, in_program)
        has_stages = mesh.pipeline_parallel_size > 1
        if has_stages:
            self._compute = PipelineGradients(run)
        else:
            alone = SegmentedGradients if run.segments > 1 else Accumulation
            self._compute = (ShardedGradients if run.shards_weights else alone)(run, self._reduction)
        self.clock = self._compute.clock if has_stages else None
        self._segments = self._compute if isinstance(self._compute, SegmentedGradients) else None
        if run.task.compares_samples:
            self._compute = functools.partial(cached_gradients, run, self._compute)
        self._last = tf.zeros([StepInfo.packed_size(len(run.task.sums), mesh.data.size)])
        self._update = tf.function(
            lambda gradients, sums, limit: run.optimizer.apply(gradients, run.loss_scale, sums, limit),
            jit_compile=run.jit and run.optimizer.can_compile,
            autograph=False,
        )

    def __call__(self, batch: Batch | DeviceBatch, requests: Requests = Requests()) -> StepInfo:  # noqa: B008
        """Does one update; each batch size has a graph of its own.

        Args:
            batch: this rank's share of the global batch: some times micro_batch_size samples, in order; on the host, or
                on the device with the sum of all ranks' loss weights.
            requests: of this rank.
        """
        info = self._step(batch, _on_host(requests), self._last)
        self._last = info.packed
        return info

    def traced(self, batch: Batch | DeviceBatch, requests: Requests) -> tf.types.experimental.ConcreteFunction:
        """Returns the traced function that `__call__` runs with such arguments."""
        return self._step.get_concrete_function(batch, _on_host(requests), self._last)

    @tf.function(autograph=False)
    def _step(self, batch: Batch | DeviceBatch, requests: tf.Tensor, last: tf.Tensor) -> StepInfo:
        run, data = self._run, self._run.mesh.data
        with tf.device("CPU:0"):
            # The host reads these while the device computes the rest: nothing here waits for it.
            before = tf.identity(last)
            requests = collectives.all_reduce(run.mesh.world, tf.identity(requests), "requests", "max")
            if isinstance(batch, DeviceBatch):
                batch, weights = batch
            else:
                weights = collectives.all_reduce(data, run.task.loss_weights(batch), "loss_weights")
        scale, step = run.loss_scale.value, run.progress.step.read_value()
        local = self._compute(batch, Position(step, tf.maximum(weights, 1.0), scale))
        gradients = local.dense
        if not (self._reduction.each_micro_batch or self._reduction.in_program):
            gradients = self._reduction.sum(gradients, first_is_early=local.rows is not None)
        if self._segments:
            self._segments.begin_sums_early()
        if local.rows:  # The rows belong to the token embedding, which is the first variable.
            gradients[0] = self._reduction.add_rows(tf.cast(gradients[0], tf.float32), local.rows)
        gradients = all_reduce_sum(run.mesh.replicas, gradients, "gradients", self._wire)
        gradients = self._reduction.make_replicas_equal(gradients)
        sums, bad_ranks = self._sum_losses(local.sums)
        norm_limit = self._norm_limit(sums, weights, Requests(*tf.unstack(requests))) if self._skips_spikes else None
        info = self._update(gradients, sums, norm_limit)
        run.task.model.token_embedding.update_copy(run.mesh, "updated")
        run.progress.count(run.task.batch_size(batch) * data.size, sums, info.skipped, info.is_nan)
        return StepInfo(sums, *info, bad_ranks, requests, before=before).with_packed()

    def _norm_limit(self, sums: tf.Tensor, weights: tf.Tensor, requests: Requests) -> tf.Tensor:
        """Returns the gradient norm from which on the update is skipped, fp32 scalar; 0 if the loss is a spike."""
        task = self._run.task
        loss = task.loss(dict(zip(task.sums, tf.unstack(sums), strict=True)), tf.maximum(weights, 1.0))
        return tf.where(loss < requests.loss_limit, requests.norm_limit, 0.0)

    def _sum_losses(self, sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the task's sums over all ranks, and 1 for each data parallel rank whose own are not finite."""
        data, count = self._run.mesh.data, sums.shape[0]
        is_bad = tf.cast(~tf.reduce_all(tf.math.is_finite(sums)), tf.float32)
        both = tf.concat([sums, tf.one_hot(data.rank, data.size, on_value=is_bad)], axis=0)
        both = collectives.all_reduce(data, both, "loss_sums")
        # Only the last pipeline stage computes sums; on the others they are zero.
        both = collectives.all_reduce(self._run.mesh.pipeline, both, "loss_sums")
        return both[:count], both[count:]


def _on_host(requests: Requests) -> tf.Tensor:
    """Returns requests as a vector, without a copy to the device, which would wait for the step before."""
    with tf.device("CPU:0"):
        return tf.constant(requests, tf.float32)
