"""Applies an update rule to the stores of an optimizer's state: whole tensors or parts, in plain TensorFlow or fused.

A store is one fp32 master weight with its slots: a whole tensor, or this rank's flat part of a bucket of many. A
slice is the part of a store that belongs to one tensor. Rules that adapt layers need the norms of whole tensors. One
collective adds up the squares of all tensors over the ranks that hold parts.
"""

from collections.abc import Collection, Iterator, Sequence

import tensorflow as tf

from tftrain.ops import lamb
from tftrain.ops.lamb import FusedUpdate, UpdateScalars
from tftrain.optim import rules
from tftrain.optim.norms import Norms
from tftrain.optim.rules import UpdateRule
from tftrain.optim.state import OptimizerState


class Update:
    """The update of one optimizer's state by one rule."""

    def __init__(
        self, rule: UpdateRule, fused: bool, state: OptimizerState, norms: Norms, undecayed: Collection[str] = ()
    ):
        """Prepares the update, in place by fused ops or in plain TensorFlow.

        The tensors of the names `undecayed` have neither weight decay nor layer adaptation.
        """
        self._rule, self._fused, self._state, self._norms = rule, fused, state, norms
        self._is_adapted = [name not in undecayed for name in state.names]

    def squared_norms(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the sum of squares of each gradient, fp32 [stores]."""
        if self._fused:
            return lamb.squared_norms(gradients)
        return tf.stack([rules.squared_norm(gradient) for gradient in gradients])

    def apply(self, gradients: Sequence[tf.Tensor], at: UpdateScalars) -> None:
        """Updates every store; `gradients` are one for each, of any floating dtype."""
        if self._fused:
            calls = list(self._fused_calls(gradients, at))
            self._rule.fused_update(calls, lambda squares: self._fused_rates(squares, at))
            if self._state.split:
                self._state.publish()
        elif self._state.split or self._norms.communicates:
            self._update_parts(gradients, at)
        else:
            self._update_tensors(gradients, at)

    def _update_tensors(self, gradients, at: UpdateScalars) -> None:
        """Updates whole tensors one after the other."""
        state, done = self._state, []
        for index, gradient in enumerate(gradients):
            # Otherwise TensorFlow's executor would start all tensors at once. Their intermediate results would take
            # several times the memory of the weights.
            with tf.control_dependencies(done):
                variable, master = state.targets[index], state.masters[index]
                slots = [stores[index] for stores in state.slots.values()]
                weight, (new, update) = master.read_value(), self._advance(master, gradient, slots, at)
                update = self._with_decay(update, weight, index)
                rate = at.learning_rate
                if self._rule.adapts_layers and self._is_adapted[index]:
                    rate *= rules.trust_ratio(rules.squared_norm(weight), rules.squared_norm(update))
                weight = rules.next_weight(weight, update, rate)
                targets = [*zip(slots, new, strict=True), (master, weight)]
                if variable is not master:
                    targets.append((variable, tf.cast(weight, variable.dtype)))
                done = [target.assign(value, read_value=False) for target, value in targets]

    def _update_parts(self, gradients, at: UpdateScalars) -> None:
        """Updates stores one after the other; if layers adapt, the slots of all stores before the weights of any."""
        done, slices, squares = [], [], []
        for gradient, master, slots, parts in self._stores(gradients):
            with tf.control_dependencies(done):
                new, update = self._advance(master, gradient, slots, at)
                done = [slot.assign(value, read_value=False) for slot, value in zip(slots, new, strict=True)]
                pieces = list(self._pieces(master, update, parts))
                if self._rule.adapts_layers:
                    slices += [item.tensor for item, _, _ in pieces]
                    squares += [(rules.squared_norm(weight), rules.squared_norm(piece)) for _, weight, piece in pieces]
                else:
                    done.append(self._assign(master, pieces, [at.learning_rate] * len(pieces)))
        if self._rule.adapts_layers:
            weights, updates = (tf.stack(each) for each in zip(*squares, strict=True))
            rates = iter(tf.unstack(self._rates(slices, weights, updates, at)))
            for _, master, slots, parts in self._stores(gradients):
                with tf.control_dependencies(done):
                    after = [slot.read_value() for slot in slots]
                    update = self._rule.direction(master.read_value(), None, None, after, at)
                    pieces = list(self._pieces(master, update, parts))
                    done = [self._assign(master, pieces, [next(rates) for _ in pieces])]
        with tf.control_dependencies(done):
            self._state.publish()

    def _advance(self, master, gradient, slots, at):
        """Returns the new slots of a store, and the direction of its weights without weight decay."""
        gradient = tf.math.multiply_no_nan(tf.cast(gradient, tf.float32), at.gradient_factor)
        before = [slot.read_value() for slot in slots]
        after = self._rule.next_slots(gradient, before, at)
        return after, self._rule.direction(master.read_value(), gradient, before, after, at)

    def _stores(self, gradients):
        state = self._state
        return zip(gradients, state.masters, zip(*state.slots.values(), strict=True), state.slices, strict=True)

    def _pieces(self, master, update, slices):
        """Yields each slice of a store, with its weight and its update before the learning rate, both flat."""
        sizes = [item.size for item in slices]
        flat = [tf.split(tf.reshape(each, [-1]), sizes) for each in (master.read_value(), update)]
        for item, weight, piece in zip(slices, *flat, strict=True):
            yield item, weight, self._with_decay(piece, weight, item.tensor)

    def _with_decay(self, update, weight, tensor: int | None):
        decay = self._weight_decay(tensor)
        return update + decay * weight if decay else update

    def _weight_decay(self, tensor: int | None) -> float:
        return self._rule.config.weight_decay if tensor is not None and self._is_adapted[tensor] else 0.0

    def _assign(self, master, pieces, rates):
        pairs = zip(pieces, rates, strict=True)
        new = [tf.reshape(rules.next_weight(weight, update, rate), [-1]) for (_, weight, update), rate in pairs]
        return master.assign(tf.reshape(tf.concat(new, 0), master.shape), read_value=False)

    def _rates(self, tensors: Sequence[int | None], weights, updates, at: UpdateScalars) -> tf.Tensor:
        """Returns the learning rate of each slice times the trust ratio of its tensor, fp32 [n].

        `tensors` has the tensor of each slice, None for padding; `weights` and `updates` are sums of squares, fp32 [n].
        """
        weights, updates = self._norms.of_tensors(tensors, weights, updates)
        is_adapted = [tensor is not None and self._is_adapted[tensor] for tensor in tensors]
        return at.learning_rate * tf.where(is_adapted, rules.trust_ratio(weights, updates), 1.0)

    def _fused_rates(self, squares: Sequence[lamb.Squares], at: UpdateScalars) -> list[tf.Tensor]:
        tensors = [tensors for _, tensors, _ in self._fused_stores()]
        rates = self._rates(
            [tensor for each in tensors for tensor in each],
            tf.concat([each.weights for each in squares], 0),
            tf.concat([each.updates for each in squares], 0),
            at,
        )
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

    def _fused_calls(self, gradients, at: UpdateScalars) -> Iterator[FusedUpdate]:
        """Yields one call for all whole tensors, or one for each bucket of parts."""
        state, copies = self._state, self._state.copies()
        for stores, tensors, sizes in self._fused_stores():
            slots = {slot.rpartition("_")[2]: variables[stores] for slot, variables in state.slots.items()}
            decays, epsilon = [self._weight_decay(tensor) for tensor in tensors], self._rule.config.adam_epsilon
            settings = {"weight_decays": decays, "epsilon": epsilon, "segments": sizes, "copies": copies}
            yield FusedUpdate(gradients[stores], weights=state.masters[stores], scalars=at, **slots, **settings)
