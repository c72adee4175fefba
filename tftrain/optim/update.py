"""Applies an update rule to the stores of an optimizer's state: whole tensors or shards, in plain TensorFlow or fused.

A store is one fp32 master weight with its slots: a whole tensor, or this rank's flat shard of a bucket of many. A
slice is the range of a store that belongs to one tensor. Rules that adapt layers need the norms of whole tensors. One
collective adds up the squares of all tensors over the ranks that hold shards.
"""

from collections.abc import Iterator, Sequence

import tensorflow as tf

from tftrain.checkpoint.tensor_slice import AVERAGE
from tftrain.config.param_groups import ParamGroup
from tftrain.ops import lamb
from tftrain.ops.lamb import FusedUpdate, UpdateScalars
from tftrain.optim import rules
from tftrain.optim.norms import Norms
from tftrain.optim.orthogonal import Orthogonalization
from tftrain.optim.rules import UpdateRule
from tftrain.optim.state import OptimizerState
from tftrain.optim.state_layout import Slice


class Update:
    """The update of one optimizer's state by one rule."""

    def __init__(
        self, rule: UpdateRule, fused: bool, state: OptimizerState, norms: Norms, orthogonalization: Orthogonalization
    ):
        """Prepares the update, in place by fused ops or in plain TensorFlow.

        The weight decay of a group, if given, is that of its tensors.
        """
        self._rule, self._fused, self._state, self._norms = rule, fused, state, norms
        self._orthogonalization = orthogonalization
        # By tensor, None for padding: weight decay, factor of the learning rate, and whether the rule adapts that.
        self._decays: dict[int | None, float] = {None: 0.0}
        self._multipliers: dict[int | None, float] = {None: 1.0}
        self._adapts: dict[int | None, bool] = {None: False}
        for tensor, each in enumerate(state.parameters):
            group = each.group or ParamGroup(each.name)
            decay = rule.config.weight_decay if each.decays else 0.0
            self._decays[tensor] = decay if group.weight_decay is None else group.weight_decay
            self._multipliers[tensor] = group.rate
            self._adapts[tensor] = rule.adapts_layers and (rule.adapts_undecayed or each.decays)

    def squared_norms(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the sum of squares of each gradient, fp32 [stores]."""
        if self._fused:
            return lamb.squared_norms(gradients)
        return tf.stack([rules.squared_norm(gradient) for gradient in gradients])

    def apply(self, gradients: Sequence[tf.Tensor], scalars: UpdateScalars) -> None:
        """Updates every store; `gradients` are one for each, of any floating dtype."""
        if self._fused:
            calls = list(self._fused_calls(gradients, scalars))
            has_rates = self._rule.adapts_layers or set(self._multipliers.values()) != {1.0}
            rates = (lambda squares: self._fused_rates(squares, scalars)) if has_rates else None
            self._rule.fused_update(calls, rates)
            if self._state.split:
                self._state.publish()
        elif self._state.split or self._norms.communicates:
            self._update_shards(gradients, scalars)
        else:
            self._update_tensors(gradients, scalars)

    def average(self, share: tf.Tensor) -> None:
        """Moves the average of each store towards its weights by a share of the difference, fp32 scalar; 0: not."""
        done = []
        for master, average in zip(self._state.masters, self._state.slots[AVERAGE], strict=True):
            with tf.control_dependencies(done):
                before = average.read_value()
                # Where the share is 0, -0.0 + 0.0 would be 0.0.
                after = tf.where(share > 0, before + share * (master.read_value() - before), before)
                done = [average.assign(after, read_value=False)]

    def _update_tensors(self, gradients: Sequence[tf.Tensor], scalars: UpdateScalars) -> None:
        """Updates whole tensors one after the other."""
        state, done = self._state, []
        for index, gradient in enumerate(gradients):
            # Otherwise TensorFlow would start all tensors at once and take several times the memory of the weights.
            with tf.control_dependencies(done):
                variable, master = state.targets[index], state.masters[index]
                slots = state.slots_of(index)
                weight = master.read_value()
                new, update, measure = self._advance(gradient, slots, state.slices[index], scalars)
                update = self._with_decay(update, weight, index)
                rate = scalars.learning_rate * self._multipliers[index]
                if self._adapts[index]:
                    rate *= self._rule.layer_factor(*self._rule.layer_sums(weight, update, measure))
                weight = rules.next_weight(weight, update, rate)
                targets = [*zip(slots, new, strict=True), (master, weight)]
                if variable is not master:
                    targets.append((variable, tf.cast(weight, variable.dtype)))
                done = [target.assign(value, read_value=False) for target, value in targets]

    def _update_shards(self, gradients: Sequence[tf.Tensor], scalars: UpdateScalars) -> None:
        """Updates stores one after the other; if layers adapt, the slots of all stores before the weights of any."""
        done, slices, sums = [], [], []
        for gradient, master, slots, parts in self._stores(gradients):
            with tf.control_dependencies(done):
                new, update, measure = self._advance(gradient, slots, parts, scalars)
                done = [slot.assign(value, read_value=False) for slot, value in zip(slots, new, strict=True)]
                pieces = list(self._pieces(master, update, parts))
                if self._rule.adapts_layers:
                    slices += [item.tensor for item, _, _ in pieces]
                    measures = [None] * len(parts) if measure is None else _split(measure, parts)
                    both = zip(pieces, measures, strict=True)
                    sums += [self._rule.layer_sums(weight, piece, own) for (_, weight, piece), own in both]
                else:
                    done.append(self._assign(master, pieces, self._scaled([item.tensor for item in parts], scalars)))
        if self._rule.adapts_layers:
            rates = iter(tf.unstack(self._rates(slices, *map(tf.stack, zip(*sums, strict=True)), scalars)))
            for _, master, slots, parts in self._stores(gradients):
                with tf.control_dependencies(done):
                    after = [slot.read_value() for slot in slots]
                    update = self._rule.direction(None, None, after, scalars)
                    pieces = list(self._pieces(master, update, parts))
                    done = [self._assign(master, pieces, [next(rates) for _ in pieces])]
        with tf.control_dependencies(done):
            self._state.publish()

    def _advance(self, gradient: tf.Tensor, slots: list[tf.Variable], parts: Sequence[Slice], scalars: UpdateScalars):
        """Returns the new slots of a store, the direction of its weights without weight decay, and `layer_measure`."""
        gradient = tf.math.multiply_no_nan(tf.cast(gradient, tf.float32), scalars.gradient_factor)
        before = [slot.read_value() for slot in slots]
        after = self._rule.next_slots(gradient, before, scalars)
        update = self._rule.direction(gradient, before, after, scalars)
        if self._rule.slots_of_matrices and len(slots) == len(self._rule.slots_of_matrices):
            update = self._orthogonalization(update, parts)
        return after, update, self._rule.layer_measure(gradient, after, scalars)

    def _stores(self, gradients: Sequence[tf.Tensor]):
        state = self._state
        slots = map(state.slots_of, range(len(state.masters)))
        return zip(gradients, state.masters, slots, state.slices, strict=True)

    def _pieces(self, master: tf.Variable, update: tf.Tensor, slices: Sequence[Slice]):
        """Yields each slice of a store, with its weight and its update before the learning rate, both flat."""
        flat = [_split(each, slices) for each in (master.read_value(), update)]
        for item, weight, piece in zip(slices, *flat, strict=True):
            yield item, weight, self._with_decay(piece, weight, item.tensor)

    def _with_decay(self, update: tf.Tensor, weight: tf.Tensor, tensor: int | None) -> tf.Tensor:
        decay = self._decays[tensor]
        return update + decay * weight if decay else update

    def _scaled(self, tensors: Sequence[int | None], scalars: UpdateScalars) -> list[tf.Tensor]:
        """Returns the learning rate of each slice without the layer's factor, fp32 scalars."""
        rates = {factor: scalars.learning_rate * factor for factor in {self._multipliers[each] for each in tensors}}
        return [rates[self._multipliers[tensor]] for tensor in tensors]

    def _assign(self, master: tf.Variable, pieces: Sequence[tuple], rates: Sequence[tf.Tensor]) -> tf.Operation:
        pairs = zip(pieces, rates, strict=True)
        new = [tf.reshape(rules.next_weight(weight, update, rate), [-1]) for (_, weight, update), rate in pairs]
        return master.assign(tf.reshape(tf.concat(new, 0), master.shape), read_value=False)

    def _rates(
        self, tensors: Sequence[int | None], first: tf.Tensor, second: tf.Tensor, scalars: UpdateScalars
    ) -> tf.Tensor:
        """Returns the learning rate of each slice times the layer's factor of its tensor, fp32 [n].

        `tensors` has the tensor of each slice, None for padding; `first` and `second` are the slices' `layer_sums`.
        """
        rates = tf.stack(self._scaled(tensors, scalars))
        if not self._rule.adapts_layers:
            return rates
        factors = self._rule.layer_factor(*self._norms.of_tensors(tensors, first, second))
        return rates * tf.where([self._adapts[tensor] for tensor in tensors], factors, 1.0)

    def _fused_rates(self, squares: Sequence[lamb.Squares], scalars: UpdateScalars) -> list[tf.Tensor]:
        tensors = [tensors for _, tensors, _ in self._fused_stores()]
        both = (tf.concat(each, 0) for each in zip(*squares, strict=True))
        rates = self._rates([tensor for each in tensors for tensor in each], *both, scalars)
        return tf.split(rates, [len(each) for each in tensors])

    def _fused_stores(self) -> list[tuple[slice, list[int | None], list[int]]]:
        """Returns the stores of each call of a fused op, the tensors of their slices, and the slices' sizes."""
        state = self._state
        if not state.split:
            return [(slice(None), list(range(len(state.names))), [])]
        return [
            (slice(number, number + 1), [item.tensor for item in store], [item.size for item in store])
            for number, store in enumerate(state.slices)
        ]

    def _fused_calls(self, gradients: Sequence[tf.Tensor], scalars: UpdateScalars) -> Iterator[FusedUpdate]:
        """Yields one call for all whole tensors, or one for each bucket of shards."""
        state, copies = self._state, self._state.copies()
        for stores, tensors, sizes in self._fused_stores():
            slots = {slot.rpartition("_")[2]: state.slots[slot][stores] for slot in self._rule.slots}
            decays, epsilon = [self._decays[tensor] for tensor in tensors], self._rule.config.adam_epsilon
            settings = {"weight_decays": decays, "epsilon": epsilon, "segments": sizes, "copies": copies}
            yield FusedUpdate(gradients[stores], weights=state.masters[stores], scalars=scalars, **slots, **settings)


def _split(store: tf.Tensor, slices: Sequence[Slice]) -> list[tf.Tensor]:
    """Returns the slices of a store's tensor, each flat."""
    return tf.split(tf.reshape(store, [-1]), [item.size for item in slices])
