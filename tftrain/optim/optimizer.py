"""The optimizer: one call that unscales, clips and applies gradients to master weights, whole or sharded.

It is not Keras's Optimizer: `tftrain.optim.rules` has the mathematics, `OptimizerState` has the variables, and this
class calls both. One pass over the gradients computes their global norm. The norm is reported and clips the gradients,
and the update is skipped if the norm is not finite. If ranks hold shards of a tensor, one collective sums a small
vector over them: all norms of the update, and a mark for each tensor that is not finite.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.checkpoint.tensor_slice import AVERAGE
from tftrain.config.optimizer import OptimizerConfig
from tftrain.host import devices
from tftrain.ops.library import require_gpu_kernels, unavailable_reason
from tftrain.optim import rules
from tftrain.optim.loss_scale import FixedLossScale, LossScale
from tftrain.optim.norms import Norms
from tftrain.optim.orthogonal import Orthogonalization
from tftrain.optim.parameter_spec import ParameterSpec
from tftrain.optim.schedule import RampedSteps, learning_rate
from tftrain.optim.state import OptimizerState
from tftrain.optim.state_layout import partitioned, slice_of
from tftrain.optim.state_split import StateSplit
from tftrain.optim.update import Update
from tftrain.parallel.mesh import Mesh


class UpdateInfo(NamedTuple):
    """The result of an update, as scalars on the device."""

    learning_rate: tf.Tensor  # fp32, of this update
    grad_norm: tf.Tensor  # fp32, of the unscaled gradients before clipping
    loss_scale: tf.Tensor  # fp32, by which these gradients were multiplied
    skipped: tf.Tensor  # bool, whether the update was skipped: loss or norm was not finite, or the norm too large
    is_nan: tf.Tensor  # bool, whether it was skipped for a reason that no smaller loss scale removes
    culprit: tf.Tensor  # fp32, a whole number: what was not finite, for `Optimizer.culprit_name`


class Optimizer(tf.Module):
    """An update rule over named variables, with fp32 state.

    Attributes:
        state, step: master weights and slots; and int64, applied updates.
        is_fused: whether fused ops run the update.
        can_compile: whether XLA can compile an update: not if fused ops or collectives are in it.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        length: int | RampedSteps,
        parameters: Sequence[ParameterSpec],
        mesh: Mesh | None = None,
        strategy: str | None = None,
        shards_weights: bool = False,
        updates: bool = True,
    ):
        """Creates the rule's fp32 slots, and an fp32 master weight for each variable that is not fp32 itself.

        Args:
            config, length: with `warmup_steps` resolved; and of the whole run, for the schedule, see `learning_rate`.
            parameters: of the whole model, from the input to the output.
            mesh: the ranks; by default this one alone.
            strategy: by which data parallel ranks partition the state, see `ParallelConfig.state_split_strategy`; None:
                each has all of it.
            shards_weights: whether the variables are released, and the sharded state is all that ranks hold of them.
            updates: whether there are slots, so that `apply` is possible.
        """
        super().__init__(name="optimizer")
        mesh, gpu = mesh or Mesh(), devices.has_gpu()
        if gpu and config.optimizer.startswith("fused_"):
            require_gpu_kernels(f"--optimizer={config.optimizer}")
        self.config, self._length = config, length
        self.step = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="optimizer/step")
        self._rule, self.is_fused = rules.choose(config, unavailable_reason(gpu) is None)
        if not self._rule.slots_of_matrices:
            parameters = [each._replace(is_matrix=False) for each in parameters]
        self._names = [each.name for each in parameters]
        self._matrices = {each.name for each in parameters if each.is_matrix}
        held = [each for each in parameters if each.variable is not None]
        split = _split(held, mesh, strategy, shards_weights) if strategy else None
        slots = {each.name: self.slots_of(each.name) if updates else () for each in held}
        self.state = OptimizerState(held, slots, split, mesh, shards_weights)
        self._norms = Norms(mesh, self.state, self._names)
        # Products of bf16 are what GPUs are fast at; CPUs have none that are faster than those of fp32.
        products = tf.bfloat16 if gpu else tf.float32
        orthogonalization = Orthogonalization([each.shard for each in held], mesh.tensor, products)
        self._update = Update(self._rule, self.is_fused, self.state, self._norms, orthogonalization)
        self.can_compile = not (self.is_fused or split or self._norms.communicates)

    def apply(
        self,
        gradients: list[tf.Tensor],
        loss_scale: LossScale | None = None,
        losses: tf.Tensor | None = None,
        norm_limit: tf.Tensor | None = None,
    ) -> UpdateInfo:
        """Unscales, clips and applies gradients unless one is not finite; updates the loss scale in both cases.

        Works eagerly and in a tf.function. XLA can compile the function if the optimizer does not communicate. Nothing
        is read back to the host.

        Args:
            gradients: one tensor (or tf.IndexedSlices) of any floating dtype for each store of the state, already
                reduced over ranks and still multiplied by the loss scale.
            loss_scale: the scale that the loss was multiplied by; None: 1.
            losses: fp32 of any shape, which must be finite too.
            norm_limit: fp32 scalar; with a gradient norm from there on the update is skipped, too. None: with none.

        Raises:
            ValueError: the gradients do not match the stores.
        """
        if len(gradients) != len(self.state.masters):
            raise ValueError(f"expected {len(self.state.masters)} gradients, given {len(gradients)}")
        if not self.state.split:
            missing = [name for name, gradient in zip(self.state.names, gradients, strict=True) if gradient is None]
            if missing:
                raise ValueError(f"no gradient for {', '.join(missing)}: every variable must take part in the loss")
        loss_scale = loss_scale or FixedLossScale()
        scale = loss_scale.value
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        squares = self._update.squared_norms(gradients)
        finite = tf.reduce_all(tf.math.is_finite(0.0 if losses is None else losses))
        marks = tf.concat([self._norms.not_finite(gradients, squares), [tf.cast(~finite, tf.float32)]], axis=0)
        total, marks = self._norms.total(squares, marks)
        grad_norm, has_bad_loss = tf.sqrt(total) / scale, marks[-1] > 0
        found_inf = has_bad_loss | ~tf.math.is_finite(grad_norm)
        clip = self.config.clip_global_norm
        factor = (clip / tf.maximum(grad_norm, clip) if clip else 1.0) / scale
        rate = learning_rate(self.config, self._length, self.step)
        skipped = found_inf if norm_limit is None else found_inf | (grad_norm >= norm_limit)
        self._update.apply(gradients, rules.scalars(self.config, rate, self.step, factor, skipped))
        if self.config.ema_decay:
            self._update.average(rules.average_share(self.config, self.step, skipped))
        self.step.assign_add(tf.cast(tf.logical_not(skipped), tf.int64))
        is_nan = found_inf & (has_bad_loss | (scale <= loss_scale.smallest))
        # On a GPU, a maximum of int32 would wait on the host for all gradients, and a range is made on the host.
        culprit = tf.reduce_max(tf.where(marks > 0, np.arange(len(self._names) + 1, dtype=np.float32), -1.0))
        loss_scale.update(found_inf)
        return UpdateInfo(rate, grad_norm, scale, skipped, is_nan, culprit)

    def slots_of(self, name: str) -> tuple[str, ...]:
        """Returns the names of the slots of a variable of any stage, given its global name."""
        slots = self._rule.slots_of_matrices if name in self._matrices else self._rule.slots
        return (*slots, AVERAGE) if self.config.ema_decay else slots

    def culprit_name(self, culprit: int, loss: str = "the loss") -> str:
        """Returns the name of the first value that was not finite: `loss`, or the gradient that backward made first.

        Backward goes from the last variable to the first. A gradient that is not finite makes all later ones so too.
        """
        if culprit == len(self._names):
            return loss
        return f"the gradient of {self._names[culprit]}" if culprit >= 0 else "the norm of all gradients together"


def _split(held: Sequence[ParameterSpec], mesh: Mesh, strategy: str, shards_weights: bool) -> StateSplit:
    """Returns how the data parallel ranks partition the state of the parameters that this rank holds."""
    tensors = [
        partitioned(
            slice_of(each.shard), each.variable.dtype, mesh.tensor.size, each.is_summed, each.is_matrix, shards_weights
        )
        for each in held
    ]
    return StateSplit(mesh.split, tensors, [each.variable.shape for each in held], strategy)
