"""The optimizer: one call that unscales, clips and applies gradients to master weights, whole or divided among ranks.

It is not Keras's Optimizer: the mathematics are the pure functions of `tftrain.optim.rules`, the variables those of
`OptimizerState`, and this class puts the functions in order. The gradients' global norm does three jobs in one pass
over them: it is reported, it clips, and it is finite exactly when the gradients can be used. Where ranks hold parts of
a tensor, all norms of an update are summed over them in one small vector, and with them which tensors are not finite.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tftrain.config import OptimizerConfig
from tftrain.ops import lamb
from tftrain.optim import rules
from tftrain.optim.loss_scale import FixedLossScale, LossScale
from tftrain.optim.norms import Norms
from tftrain.optim.schedule import RampedSteps, learning_rate
from tftrain.optim.state import OptimizerState
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.state_split import StateSplit
from tftrain.parallel.tensor import Slice

EXCLUDED = ("bias", "beta", "gamma")


class UpdateInfo(NamedTuple):
    """What an update reports, as scalars on the device."""

    learning_rate: tf.Tensor  # fp32, of this update
    grad_norm: tf.Tensor  # fp32, of the unscaled gradients before clipping
    loss_scale: tf.Tensor  # fp32, the one these gradients carry
    found_inf: tf.Tensor  # bool, whether loss or norm was not finite and the update was skipped
    is_nan: tf.Tensor  # bool, whether it was skipped for a reason that no smaller loss scale removes
    culprit: tf.Tensor  # int32, what was not finite, for `Optimizer.culprit_name`


class _Call(NamedTuple):
    """Arguments of a fused op.

    Attributes:
        tensors: of which tensor each of its norms and weight decays is; None for padding.
        gradients, stores, how: the arguments that all, some, or no passes share.
    """

    tensors: list[int | None]
    gradients: dict[str, list[tf.Tensor]]
    stores: dict[str, list[tf.Variable]]
    how: dict[str, Any]


class Optimizer(tf.Module):
    """LAMB or AdamW over named variables, with fp32 state.

    Attributes:
        state: master weights and moments.
        step: int64, applied updates.
        communicates: whether an update talks to other ranks, and so can't be an XLA cluster.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        length: int | RampedSteps,
        names: list[str],
        variables: list[tf.Variable],
        mesh: Mesh | None = None,
        split_strategy: str | None = None,
        slices: Mapping[str, Slice] | None = None,
    ):
        """Creates the state: two fp32 moments a variable, and an fp32 master weight for each that is not fp32 itself.

        Args:
            config: rule and hyperparameters, with `warmup_steps` resolved.
            length: of the whole run, for the schedule, see `learning_rate`.
            names: a unique global name for each variable, such as `layer_00/attention/query/kernel`. Those that end in
                bias, beta or gamma have neither weight decay nor layer adaptation.
            variables: the model's variables in the same order, of any floating dtype.
            mesh: the ranks; by default this one alone.
            split_strategy: how state is divided among the data parallel ranks, see `ParallelConfig`; None: not.
            slices: of variables that the tensor parallel ranks hold slices of, by name.

        Raises:
            ValueError: names and variables do not match, or a name occurs twice.
        """
        super().__init__(name="optimizer")
        if len(names) != len(variables) or len(set(names)) != len(names):
            raise ValueError(
                f"expected one unique name for each of {len(variables)} variables, "
                f"given {len(names)} names of which {len(set(names))} differ"
            )
        mesh, slices = mesh or Mesh(), slices or {}
        self.config, self._length = config, length
        self.step = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="optimizer/step")
        sliced = [name in slices for name in names]
        split = None
        if split_strategy:
            shapes = [variable.shape for variable in variables]
            # What is gathered together has one dtype; what is counted together is either sliced or whole.
            kinds = [(is_sliced, variable.dtype) for is_sliced, variable in zip(sliced, variables, strict=True)]
            split = StateSplit(mesh.data, names, shapes, split_strategy, kinds)
        self.state = OptimizerState(names, variables, split, mesh, slices)
        self._norms = Norms(mesh, bool(split), self.state.segments, sliced)
        self.communicates = self._norms.communicates or bool(split)
        self._adapted = [not name.endswith(EXCLUDED) for name in names]
        self._decays = [config.weight_decay if adapted else 0.0 for adapted in self._adapted]

    def apply(
        self, gradients: list[tf.Tensor], loss_scale: LossScale | None = None, losses: tf.Tensor | None = None
    ) -> UpdateInfo:
        """Unscales, clips and applies gradients unless one is not finite, and moves the loss scale on either way.

        Works the same eagerly, in a tf.function, and, unless it communicates, in one compiled by XLA; nothing is read
        back to the host.

        Args:
            gradients: one fp32 tensor (or tf.IndexedSlices) for each store of the state, already reduced over ranks
                and still multiplied by the loss scale.
            loss_scale: the scale that the loss was multiplied by; None: 1.
            losses: fp32 of any shape, which must be finite too.

        Returns:
            Learning rate, gradient norm, loss scale, whether the update was skipped and why.

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
        squares = self._squares(gradients)
        finite = tf.reduce_all(tf.math.is_finite(0.0 if losses is None else losses))
        marks = tf.concat([self._norms.not_finite(gradients, squares), [tf.cast(~finite, tf.float32)]], axis=0)
        total, marks = self._norms.total(squares, marks)
        grad_norm, has_bad_loss = tf.sqrt(total) / scale, marks[-1] > 0
        found_inf = has_bad_loss | ~tf.math.is_finite(grad_norm)
        rate = self._update(gradients, scale, grad_norm, found_inf)
        is_nan = found_inf & (has_bad_loss | (scale <= loss_scale.smallest))
        culprit = tf.reduce_max(tf.where(marks > 0, tf.range(len(self.state.names) + 1), -1))
        loss_scale.update(found_inf)
        return UpdateInfo(rate, grad_norm, scale, found_inf, is_nan, culprit)

    def culprit_name(self, culprit: int) -> str:
        """Returns in words what was not finite first: the loss, or else the gradient that backward came to first.

        Backward goes from the last variable to the first, and what is not finite spoils all that comes after it.
        """
        if culprit == len(self.state.names):
            return "the loss"
        return f"the gradient of {self.state.names[culprit]}" if culprit >= 0 else "the norm of all gradients together"

    def _squares(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        """Returns the sum of squares of each gradient, fp32 [stores]."""
        if self.config.optimizer.startswith("fused"):
            return lamb.squared_norms(gradients)
        return tf.stack([rules.squared_norm(gradient) for gradient in gradients])

    def _update(self, gradients, scale, grad_norm, found_inf) -> tf.Tensor:
        """Applies gradients, or nothing where `found_inf`, and returns the learning rate."""
        clip = self.config.clip_global_norm
        factor = (clip / tf.maximum(grad_norm, clip) if clip else 1.0) / scale
        rate = learning_rate(self.config, self._length, self.step)
        at = rules.scalars(self.config, rate, self.step, factor, found_inf)
        if self.config.optimizer.startswith("fused"):
            self._fused_update(gradients, at)
        elif self.communicates:
            self._update_parts(gradients, at)
        else:
            self._update_each(gradients, at)
        self.step.assign_add(tf.cast(tf.logical_not(found_inf), tf.int64))
        return rate

    def _fused_update(self, gradients: list[tf.Tensor], at: rules.Scalars) -> None:
        """Updates stores by the ops that take many tensors, or all segments of one, at once and in place."""
        scalars = lamb.UpdateScalars(*at[: len(lamb.UpdateScalars._fields)])
        calls = list(self._calls(gradients, scalars))
        if self.config.optimizer == "fused_adamw":
            for call in calls:
                lamb.adamw(**call.gradients, **call.stores, **call.how)
        else:
            squares = [lamb.lamb_moments(**call.gradients, **call.stores, **call.how) for call in calls]
            rates = self._rates(
                [tensor for call in calls for tensor in call.tensors],
                tf.concat([each.weights for each in squares], 0),
                tf.concat([each.updates for each in squares], 0),
                at,
            )
            rates = tf.split(rates, [len(call.tensors) for call in calls])
            for call, own in zip(calls, rates, strict=True):
                lamb.lamb_weights(rates=own, **call.stores, **call.how)
        self.state.publish()

    def _calls(self, gradients: list[tf.Tensor], scalars: lamb.UpdateScalars) -> Iterator["_Call"]:
        """Yields the calls of a fused op: a single one for whole tensors, one for each bucket of parts."""
        state, parts = self.state, [(slice(None), list(range(len(self.state.names))), [])]
        if state.split:
            parts = [
                (slice(number, number + 1), [segment.tensor for segment in store], [segment.size for segment in store])
                for number, store in enumerate(state.segments)
            ]
        m, v = state.slots["adam_m"], state.slots["adam_v"]
        for stores, tensors, sizes in parts:
            yield _Call(
                tensors,
                {"gradients": gradients[stores]},
                {"m": m[stores], "v": v[stores], "weights": state.masters[stores]},
                {
                    "scalars": scalars,
                    "weight_decays": [self._decay(tensor) for tensor in tensors],
                    "epsilon": self.config.adam_epsilon,
                    "segments": sizes,
                },
            )

    def _rates(self, tensors: list[int | None], weights: tf.Tensor, updates: tf.Tensor, at: rules.Scalars) -> tf.Tensor:
        """Returns the learning rate of each segment times the trust ratio of its tensor.

        Args:
            tensors: [n], the tensor of each segment; None for padding.
            weights, updates: fp32 [n], sums of squares of this rank's segments.
            at: the update's scalars.
        """
        weights, updates = self._norms.of_tensors(tensors, weights, updates)
        adapted = [tensor is not None and self._adapted[tensor] for tensor in tensors]
        return at.learning_rate * tf.where(adapted, rules.trust_ratio(weights, updates), 1.0)

    def _decay(self, tensor: int | None) -> float:
        return 0.0 if tensor is None else self._decays[tensor]

    def _update_parts(self, gradients: list[tf.Tensor], at: rules.Scalars) -> None:
        """Updates stores in two passes, as the fused ops do: LAMB's trust ratios need all ranks in between."""
        state = self.state
        tensors, squares, done = [], [], []
        for gradient, m, v, master, segments in self._stores(gradients):
            with tf.control_dependencies(done):
                new_m, new_v = rules.next_moments(gradient, m.read_value(), v.read_value(), at)
                for segment, (weight, update) in self._directions(master, new_m, new_v, segments, at):
                    tensors.append(segment.tensor)
                    squares.append((rules.squared_norm(weight), rules.squared_norm(update)))
                done = [m.assign(new_m, read_value=False), v.assign(new_v, read_value=False)]
        rates = [at.learning_rate] * len(tensors)
        if self.config.optimizer == "lamb":
            weights, updates = zip(*squares, strict=True)
            rates = tf.unstack(self._rates(tensors, tf.stack(weights), tf.stack(updates), at))
        rates = iter(rates)
        for _, m, v, master, segments in self._stores(gradients):
            with tf.control_dependencies(done):
                pieces = [
                    tf.reshape(rules.next_weight(weight, update, next(rates)), [-1])
                    for _, (weight, update) in self._directions(master, m.read_value(), v.read_value(), segments, at)
                ]
                done = [master.assign(tf.reshape(tf.concat(pieces, 0), master.shape), read_value=False)]
        with tf.control_dependencies(done):
            state.publish()

    def _stores(self, gradients):
        m, v = self.state.slots["adam_m"], self.state.slots["adam_v"]
        return zip(gradients, m, v, self.state.masters, self.state.segments, strict=True)

    def _directions(self, master, m, v, segments, at):
        """Yields each segment of a store with its weight and its update before the learning rate, both flat."""
        sizes = [segment.size for segment in segments]
        flat = [tf.split(tf.reshape(each, [-1]), sizes) for each in (master.read_value(), m, v)]
        for segment, weight, m_part, v_part in zip(segments, *flat, strict=True):
            yield segment, (weight, rules.direction(weight, m_part, v_part, at, self._decay(segment.tensor)))

    def _update_each(self, gradients: list[tf.Tensor], at: rules.Scalars) -> None:
        """Updates whole tensors one after the other."""
        done = []
        for index, gradient in enumerate(gradients):
            # One tensor after the other: TensorFlow's executor would else start all of them at once and hold the
            # intermediate results of each, several times the weights.
            with tf.control_dependencies(done):
                done = self._update_tensor(index, gradient, at)

    def _update_tensor(self, index: int, gradient: tf.Tensor, at: rules.Scalars) -> list[tf.Operation]:
        """Updates one weight with its moments and returns the operations that did."""
        state = self.state
        variable, master = state.targets[index], state.masters[index]
        weight = master.read_value()
        m_store, v_store = state.slots["adam_m"][index], state.slots["adam_v"][index]
        m, v = rules.next_moments(gradient, m_store.read_value(), v_store.read_value(), at)
        update = rules.direction(weight, m, v, at, self._decays[index])
        rate = at.learning_rate
        if self.config.optimizer == "lamb" and self._adapted[index]:
            rate *= rules.trust_ratio(rules.squared_norm(weight), rules.squared_norm(update))
        weight = rules.next_weight(weight, update, rate)
        targets = [(m_store, m), (v_store, v), (master, weight)]
        if variable is not master:
            targets.append((variable, tf.cast(weight, variable.dtype)))
        return [target.assign(value, read_value=False) for target, value in targets]
