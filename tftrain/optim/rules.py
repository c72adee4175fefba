"""Update rules: the slots of an optimizer, how they advance, and in which direction a weight moves.

A rule is pure mathematics over fp32 tensors, element by element: it serves a whole tensor, a shard of one, or a flat
bucket of many. `tftrain.optim.update` runs it, whole or sharded, in plain TensorFlow or by fused ops.

A skipped update takes no branch, hence no round trip to the host and no extra pass over the weights: the scalars
become such that every formula returns its input, bit for bit (x * 1 - 0), and `multiply_no_nan` excludes a non-finite
gradient.
"""

import abc
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import tensorflow as tf

from tftrain.config.optimizer import UPDATE_RULES, OptimizerConfig
from tftrain.ops import lamb
from tftrain.ops.lamb import FusedUpdate, UpdateScalars

# From the squared norms of the weights and of the updates, fp32 [n] for each call, to the learning rates of each call.
Rates = Callable[[Sequence[lamb.Squares]], Sequence[tf.Tensor]]
# The state tensors of a weight, in the order of the rule's names.
Slots = Sequence[tf.Tensor]


class UpdateRule(abc.ABC):
    """One optimizer; `RULES` has the subclasses."""

    slots: ClassVar[tuple[str, ...]]  # names of the fp32 state tensors of each weight, as the methods take them
    # Those of the blocks' kernels, [inputs, outputs], whose directions such a rule makes orthogonal; None: the same.
    slots_of_matrices: ClassVar[tuple[str, ...] | None] = None
    # Whether the learning rate of each tensor is multiplied by its `layer_factor`. Then `direction` must follow from
    # the new slots alone: it is computed once more after the sums over all ranks are known.
    adapts_layers: ClassVar[bool] = False
    adapts_undecayed: ClassVar[bool] = False  # also that of tensors without weight decay
    # Over one update or several; without rates, each has the learning rate. None: there are no fused ops.
    fused_update: ClassVar[Callable[[Sequence[FusedUpdate], Rates | None], None] | None] = None

    def __init__(self, config: OptimizerConfig):
        self.config = config

    @abc.abstractmethod
    def next_slots(self, gradient: tf.Tensor, slots: Slots, scalars: UpdateScalars) -> list[tf.Tensor]:
        """Returns the new slots, fp32 tensors of the gradient's shape.

        The gradient is fp32, already multiplied by the gradient factor.
        """

    @abc.abstractmethod
    def direction(
        self, gradient: tf.Tensor | None, before: Slots | None, after: Slots, scalars: UpdateScalars
    ) -> tf.Tensor:
        """Returns the update that is subtracted from a weight, fp32, before learning rate and weight decay.

        Gradient and slots before are as for `next_slots`; None where `adapts_layers`.
        """

    def layer_measure(self, gradient: tf.Tensor, after: Slots, scalars: UpdateScalars) -> tf.Tensor | None:
        """Returns what else `layer_sums` needs, of the gradient's shape, fp32; None: nothing."""
        return None

    def layer_sums(self, weight: tf.Tensor, update: tf.Tensor, measure: tf.Tensor | None) -> tuple:
        """Returns two sums over a tensor or a shard of one, fp32 scalars, where `adapts_layers`.

        Weight, update with weight decay, and `layer_measure` are fp32 of one shape.
        """
        return squared_norm(weight), squared_norm(update)

    def layer_factor(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """Returns the factor of the learning rate, given both sums over the whole tensor, fp32 scalars or vectors."""
        return trust_ratio(first, second)


class AdamW(UpdateRule):
    """AdamW (arXiv 1711.05101): m_hat / (sqrt(v_hat) + epsilon)."""

    slots = UPDATE_RULES["adamw"].slots

    def next_slots(self, gradient: tf.Tensor, slots: Slots, scalars: UpdateScalars) -> list[tf.Tensor]:
        """Returns beta1 * m + (1 - beta1) * g and beta2 * v + (1 - beta2) * g ** 2."""
        m, v = slots
        # A difference, not a sum: -0.0 - 0.0 is -0.0, whereas -0.0 + 0.0 is not.
        m = m * scalars.beta1 - gradient * scalars.minus_one_minus_beta1
        v = v * scalars.beta2 + tf.square(gradient) * scalars.one_minus_beta2
        return [m, v]

    def direction(self, gradient: tf.Tensor, before: Slots, after: Slots, scalars: UpdateScalars) -> tf.Tensor:
        """Returns m_hat / (sqrt(v_hat) + epsilon)."""
        m, v = after
        return (m * scalars.m_correction) / (tf.sqrt(v * scalars.v_correction) + self.config.adam_epsilon)

    @staticmethod
    def fused_update(calls: Sequence[FusedUpdate], rates: Rates | None) -> None:
        """Updates slots and weights in one pass; with rates, see `Lamb.fused_update`."""
        if rates:
            Lamb.fused_update(calls, rates)
            return
        for call in calls:
            lamb.adamw(call)


class Lamb(AdamW):
    """LAMB (arXiv 1904.00962): AdamW's direction, scaled in each tensor by its trust ratio |w| / |u|.

    Queries, keys and values are three tensors, each with a ratio of its own.
    """

    adapts_layers = True

    @staticmethod
    def fused_update(calls: Sequence[FusedUpdate], rates: Rates) -> None:
        """Updates the slots in a first pass and the weights in a second one; the norms are summed in between."""
        for call, own in zip(calls, rates([lamb.lamb_moments(call) for call in calls]), strict=True):
            lamb.lamb_weights(call, own)


class StableAdamW(AdamW):
    """StableAdamW (arXiv 2304.13013, algorithm 2): AdamW with Adafactor's update clipping (arXiv 1804.04235).

    The learning rate of each tensor is divided by max(1, RMS), where RMS is the root of the mean of g ** 2 / v_hat over
    the tensor, and sqrt(v_hat) at least epsilon. RMS is large where the second moment is too old for the gradients.
    """

    adapts_layers = adapts_undecayed = True
    fused_update = None

    def layer_measure(self, gradient: tf.Tensor, after: Slots, scalars: UpdateScalars) -> tf.Tensor:
        """Returns g / max(sqrt(v_hat), epsilon)."""
        return gradient / tf.maximum(tf.sqrt(after[1] * scalars.v_correction), self.config.adam_epsilon)

    def layer_sums(self, weight: tf.Tensor, update: tf.Tensor, measure: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the sum of squares of the measure, and the number of elements."""
        return squared_norm(measure), tf.constant(measure.shape.num_elements(), tf.float32)

    def layer_factor(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """Returns 1 / max(1, RMS)."""
        return 1.0 / tf.maximum(tf.sqrt(first / tf.maximum(second, 1.0)), 1.0)


class Muon(AdamW):
    """Muon (kellerjordan.github.io/posts/muon): orthogonalized momentum for matrices, AdamW for the rest.

    The kernels of the blocks have one slot, and Nesterov's momentum; `tftrain.optim.orthogonal` makes it an update.
    Queries, keys and values are three matrices. Embeddings, heads and vectors are AdamW's.
    """

    slots_of_matrices = UPDATE_RULES["muon"].slots_of_kernels
    fused_update = None

    def next_slots(self, gradient: tf.Tensor, slots: Slots, scalars: UpdateScalars) -> list[tf.Tensor]:
        """Returns mu * m + (1 - mu) * g for a matrix, else as AdamW."""
        if len(slots) > 1:
            return super().next_slots(gradient, slots, scalars)
        mu, (m,) = self.config.muon_momentum, slots
        # Where the update is skipped, -0.0 * 1 + 0.0 would be 0.0.
        return [tf.where(scalars.one_minus_beta2 > 0, m * mu + gradient * (1 - mu), m)]

    def direction(self, gradient: tf.Tensor, before: Slots, after: Slots, scalars: UpdateScalars) -> tf.Tensor:
        """Returns mu * m + (1 - mu) * g for a matrix, with the new m, still to be orthogonalized; else as AdamW."""
        if len(after) > 1:
            return super().direction(gradient, before, after, scalars)
        mu = self.config.muon_momentum
        return after[0] * mu + gradient * (1 - mu)


class Lion(UpdateRule):
    """Lion (arXiv 2302.06675): the sign of an interpolation between momentum and gradient; one slot, no epsilon.

    Each of its steps is as long as AdamW's longest. So the paper uses a learning rate that is 3 to 10 times smaller, a
    weight decay that is larger by the same factor, and beta2 = 0.99.
    """

    slots = UPDATE_RULES["lion"].slots

    def next_slots(self, gradient: tf.Tensor, slots: Slots, scalars: UpdateScalars) -> list[tf.Tensor]:
        """Returns beta2 * m + (1 - beta2) * g."""
        (m,) = slots
        # Where the update is skipped, -0.0 * 1 + 0.0 would be 0.0.
        return [tf.where(scalars.one_minus_beta2 > 0, m * scalars.beta2 + gradient * scalars.one_minus_beta2, m)]

    def direction(self, gradient: tf.Tensor, before: Slots, after: Slots, scalars: UpdateScalars) -> tf.Tensor:
        """Returns sign(beta1 * m + (1 - beta1) * g), from the momentum before the update."""
        (m,) = before
        return tf.sign(m * scalars.beta1 - gradient * scalars.minus_one_minus_beta1)


RULES: dict[str, type[UpdateRule]] = {rule.__name__.lower(): rule for rule in (AdamW, Lamb, Lion, Muon, StableAdamW)}


def choose(config: OptimizerConfig, fused_available: bool) -> tuple[UpdateRule, bool]:
    """Returns the rule that `--optimizer` names, and whether fused ops run it.

    The prefix "fused_" or "reference_" forces an implementation. Without a prefix, fused ops run if the rule has them
    and their library is built for this run's device.
    """
    forced, _, name = config.optimizer.rpartition("_")
    rule = RULES[name](config)
    return rule, forced == "fused" or (not forced and fused_available and rule.fused_update is not None)


def squared_norm(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of squares of a tensor of any shape and floating dtype, as an fp32 scalar."""
    return 2.0 * tf.nn.l2_loss(tf.cast(tensor, tf.float32))


def scalars(
    config: OptimizerConfig, learning_rate: tf.Tensor, step: tf.Tensor, gradient_factor: tf.Tensor, skip: tf.Tensor
) -> UpdateScalars:
    """Returns the scalars of one update, which all tensors share; those of an identity where `skip`, a bool scalar.

    Args:
        config, learning_rate: the betas, and an fp32 scalar.
        step: int64 scalar, updates applied before this one.
        gradient_factor: fp32 scalar that every gradient is multiplied by.
        skip: whether the update leaves weights and moments as they are.
    """
    time = tf.cast(step + 1, tf.float32)

    def unless_skipped(value: float | tf.Tensor, otherwise: float) -> tf.Tensor:
        return tf.where(skip, tf.constant(otherwise, tf.float32), value)

    def correction(beta: float) -> tf.Tensor:
        # 1 - beta ** t without cancellation, which would leave 4 digits of fp32 at t = 1 and beta2 = 0.999.
        return 1.0 / -tf.math.expm1(time * (math.log(beta) if beta else -math.inf))

    beta1, beta2 = config.adam_beta1, config.adam_beta2
    return UpdateScalars(
        gradient_factor=unless_skipped(gradient_factor, 0.0),
        learning_rate=unless_skipped(learning_rate, 0.0),
        beta1=unless_skipped(beta1, 1.0),
        beta2=unless_skipped(beta2, 1.0),
        minus_one_minus_beta1=unless_skipped(beta1 - 1.0, 0.0),
        one_minus_beta2=unless_skipped(1.0 - beta2, 0.0),
        m_correction=correction(beta1),
        v_correction=correction(beta2),
    )


def average_share(config: OptimizerConfig, step: tf.Tensor, skip: tf.Tensor) -> tf.Tensor:
    """Returns the share of the new weights in their moving average, fp32 scalar; 0 where the update is skipped.

    It is 1 - min(ema_decay, (1 + t) / (10 + t)) after t updates, as with `num_updates` of TensorFlow's
    ExponentialMovingAverage: an early average soon forgets the initial weights. `step` and `skip` are as for `scalars`.
    """
    time = tf.cast(step, tf.float32)
    return tf.where(skip, 0.0, tf.maximum(1.0 - config.ema_decay, 9.0 / (10.0 + time)))


def trust_ratio(weight_square: tf.Tensor, update_square: tf.Tensor) -> tf.Tensor:
    """Returns LAMB's |w| / |u|, and 1 where either norm is zero.

    The squared norms are over the whole tensor; fp32 scalars, or vectors over tensors, as is the result.
    """
    both = tf.logical_and(weight_square > 0, update_square > 0)
    weight_norm, update_norm = tf.sqrt(weight_square), tf.sqrt(tf.where(both, update_square, 1.0))
    return tf.where(both, weight_norm / update_norm, 1.0)


def next_weight(weight: tf.Tensor, update: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
    """Returns w - rate * u, and exactly w where the rate is 0; fp32 tensors of one shape, and an fp32 scalar.

    The rate is the learning rate, times the trust ratio for LAMB.
    """
    return weight - tf.math.multiply_no_nan(update, rate)
