"""The optimizer: master weights, moments and step as plain variables, and one call that updates them.

It is not Keras's Optimizer: the state will be cut into shards over ranks, so the mathematics are the pure functions of
`tftrain.optim.rules` and this class only holds the variables and puts the functions in order. The gradients' global
norm does three jobs in one pass over them: it is reported, it clips, and it is finite exactly when the update is safe.
"""

from typing import NamedTuple

import tensorflow as tf

from tftrain.config import OptimizerConfig
from tftrain.ops import lamb
from tftrain.optim import rules
from tftrain.optim.loss_scale import FixedLossScale, LossScale
from tftrain.optim.schedule import learning_rate

EXCLUDED = ("bias", "beta", "gamma")


class UpdateInfo(NamedTuple):
    """What an update reports, as scalars on the device."""

    learning_rate: tf.Tensor  # fp32, of this update
    grad_norm: tf.Tensor  # fp32, of the unscaled gradients before clipping; not finite exactly when found_inf
    loss_scale: tf.Tensor  # fp32, the one these gradients carry
    found_inf: tf.Tensor  # bool, whether the update was skipped


class Optimizer(tf.Module):
    """LAMB or AdamW over named variables, with fp32 state."""

    def __init__(self, config: OptimizerConfig, max_steps: int, names: list[str], variables: list[tf.Variable]):
        """Creates the state: two fp32 moments a variable, and an fp32 master weight for each that is not fp32 itself.

        Args:
            config: rule and hyperparameters, with `warmup_steps` resolved.
            max_steps: updates of the whole run, for the schedule.
            names: a unique global name for each variable, such as `layer_00/attention/query/kernel`. Those that end in
                bias, beta or gamma have neither weight decay nor layer adaptation.
            variables: the model's variables in the same order, of any floating dtype.

        Raises:
            ValueError: names and variables do not match, or a name occurs twice.
        """
        super().__init__(name="optimizer")
        if len(names) != len(variables) or len(set(names)) != len(names):
            raise ValueError(
                f"expected one unique name for each of {len(variables)} variables, "
                f"given {len(names)} names of which {len(set(names))} differ"
            )
        self.config, self.max_steps, self.names = config, max_steps, list(names)
        self.variables_to_update = list(variables)
        self.step = self._state("optimizer/step", tf.zeros([], tf.int64))
        self.masters = [
            variable if variable.dtype == tf.float32 else self._state(f"master/{name}", tf.cast(variable, tf.float32))
            for name, variable in zip(names, variables, strict=True)
        ]
        self.m = [self._state(f"adam_m/{name}", tf.zeros(variable.shape)) for name, variable in self._named()]
        self.v = [self._state(f"adam_v/{name}", tf.zeros(variable.shape)) for name, variable in self._named()]

    def apply(self, gradients: list[tf.Tensor], loss_scale: LossScale | None = None) -> UpdateInfo:
        """Unscales, clips and applies gradients unless one is not finite, and moves the loss scale on either way.

        Works the same eagerly, in a tf.function, and in one compiled by XLA; nothing is read back to the host.

        Args:
            gradients: one fp32 tensor of each variable's shape (or tf.IndexedSlices), in the variables' order, already
                reduced over ranks and still multiplied by the loss scale.
            loss_scale: the scale that the loss was multiplied by; None: 1.

        Returns:
            Learning rate, gradient norm, loss scale and whether the update was skipped.

        Raises:
            ValueError: the gradients do not match the variables.
        """
        if len(gradients) != len(self.masters):
            raise ValueError(f"expected {len(self.masters)} gradients, given {len(gradients)}")
        missing = [name for name, gradient in zip(self.names, gradients, strict=True) if gradient is None]
        if missing:
            raise ValueError(f"no gradient for {', '.join(missing)}: every variable must take part in the loss")
        loss_scale = loss_scale or FixedLossScale()
        scale = loss_scale.value
        info = self._update([tf.convert_to_tensor(gradient) for gradient in gradients], scale)
        loss_scale.update(info.found_inf)
        return info

    def state(self) -> dict[str, tf.Variable]:
        """Returns every variable that a checkpoint must hold, by its global name.

        `master/NAME` is the fp32 weight (the model's own variable where that is fp32), `adam_m/NAME` and `adam_v/NAME`
        the moments, `optimizer/step` the int64 count of applied updates. After restoring, call `cast_masters`.
        """
        state = {"optimizer/step": self.step}
        for kind, variables in (("master", self.masters), ("adam_m", self.m), ("adam_v", self.v)):
            state.update({f"{kind}/{name}": variable for name, variable in zip(self.names, variables, strict=True)})
        return state

    def cast_masters(self) -> None:
        """Writes the master weights, rounded, to those of the model's variables that are not fp32."""
        for variable, master in zip(self.variables_to_update, self.masters, strict=True):
            if variable is not master:
                variable.assign(tf.cast(master, variable.dtype))

    def _named(self):
        return zip(self.names, self.variables_to_update, strict=True)

    @staticmethod
    def _state(name: str, initial: tf.Tensor) -> tf.Variable:
        return tf.Variable(initial, trainable=False, name=name)

    def _update(self, gradients: list[tf.Tensor], scale: tf.Tensor) -> UpdateInfo:
        fused = self.config.optimizer.startswith("fused")
        squares = lamb.squared_norms(gradients) if fused else tf.stack([rules.squared_norm(g) for g in gradients])
        grad_norm = tf.sqrt(tf.reduce_sum(squares)) / scale
        found_inf = tf.logical_not(tf.math.is_finite(grad_norm))
        clip = self.config.clip_global_norm
        factor = (clip / tf.maximum(grad_norm, clip) if clip else 1.0) / scale
        rate = learning_rate(self.config, self.max_steps, self.step)
        at = rules.scalars(self.config, rate, self.step, factor, found_inf)
        if fused:
            self._fused_update(gradients, at)
        else:
            self._update_each(gradients, at)
        self.step.assign_add(tf.cast(tf.logical_not(found_inf), tf.int64))
        return UpdateInfo(rate, grad_norm, scale, found_inf)

    def _fused_update(self, gradients: list[tf.Tensor], at: rules.Scalars) -> None:
        """Updates all weights with their moments by the ops that take them all at once, in place."""
        adapted = [not name.endswith(EXCLUDED) for name in self.names]
        decays = [self.config.weight_decay if each else 0.0 for each in adapted]
        scalars = lamb.UpdateScalars(*at[: len(lamb.UpdateScalars._fields)])
        if self.config.optimizer == "fused_adamw":
            lamb.adamw(gradients, self.m, self.v, self.masters, scalars, decays, at.epsilon)
        else:
            squares = lamb.lamb_moments(gradients, self.m, self.v, self.masters, scalars, decays, at.epsilon)
            ratios = tf.where(adapted, rules.trust_ratio(squares.weights, squares.updates), 1.0)
            rates = at.learning_rate * ratios
            lamb.lamb_weights(self.m, self.v, self.masters, rates, scalars, decays, at.epsilon)
        self.cast_masters()

    def _update_each(self, gradients: list[tf.Tensor], at: rules.Scalars) -> None:
        """Updates the weights one after the other."""
        done = []
        for index, gradient in enumerate(gradients):
            # One tensor after the other: TensorFlow's executor would else start all of them at once and hold the
            # intermediate results of each, several times the weights.
            with tf.control_dependencies(done):
                done = self._update_tensor(index, gradient, at)

    def _update_tensor(self, index: int, gradient: tf.Tensor, at: rules.Scalars) -> list[tf.Operation]:
        """Updates one weight with its moments and returns the operations that did."""
        excluded = self.names[index].endswith(EXCLUDED)
        variable, master = self.variables_to_update[index], self.masters[index]
        weight = master.read_value()
        m, v = rules.next_moments(gradient, self.m[index].read_value(), self.v[index].read_value(), at)
        update = rules.direction(weight, m, v, at, 0.0 if excluded else self.config.weight_decay)
        rate = at.learning_rate
        if self.config.optimizer == "lamb" and not excluded:
            rate *= rules.trust_ratio(rules.squared_norm(weight), rules.squared_norm(update))
        weight = rules.next_weight(weight, update, rate)
        targets = [(self.m[index], m), (self.v[index], v), (master, weight)]
        if variable is not master:
            targets.append((variable, tf.cast(weight, variable.dtype)))
        return [target.assign(value, read_value=False) for target, value in targets]
