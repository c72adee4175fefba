"""The state of an optimizer: master weights and slots, whole on every rank or sharded.

A store is a master weight variable with one variable for each slot. A whole state has a store for each variable of the
model, of the same shape. A sharded state has a store for each bucket of `StateSplit`: this rank's shard of the bucket,
flat. A checkpoint does not contain stores: it contains pieces of tensors with global names. Each rank saves and
restores its pieces without communication.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from tftrain.architecture.shard import VariableShard
from tftrain.checkpoint.tensor_slice import AVERAGE, MASTER, TensorData, TensorReader, TensorSlice, renamed
from tftrain.optim.parameter_spec import ParameterSpec
from tftrain.optim.restore_buffers import VariablePiece, assign_parts, restore_buffers
from tftrain.optim.state_layout import Held, Slice, held_pieces, saved_pieces, slice_of
from tftrain.optim.state_split import StateSplit
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.tensor import own_copy


class OptimizerState(tf.Module):
    """fp32 master weights and slots of named variables.

    Attributes:
        parameters: those of this rank.
        names: global name of each variable, such as `layer_00/attention/query/kernel`.
        targets: the model's variables, in the same order, of any floating dtype.
        masters: a variable for each store. A master weight is the model's own variable where that is fp32 and nothing
            is sharded.
        slots: by the name of a slot, such as `adam_m`, its variable for each store; None for one that has no such slot.
        slices: for each store, the variables whose elements it has, in order.
        replicated: for each store, whether every tensor parallel rank holds all of its tensors whole.
        summed: for each store, whether the gradients of its tensors must be summed over the tensor parallel ranks.
        split: how the stores are partitioned over ranks; None: they are whole.
        shards_weights: whether the masters are all that ranks hold of the weights; the model's variables are released.
    """

    def __init__(
        self,
        parameters: Sequence[ParameterSpec],
        slots: Mapping[str, Sequence[str]],
        split: StateSplit | None = None,
        mesh: Mesh | None = None,
        shards_weights: bool = False,
    ):
        """Creates the state, with slots of zero.

        The initial value of a master weight is asked for one after another, and with a split only if this rank owns
        elements of it.

        Args:
            parameters: those of this rank; its variables are the targets.
            slots: names of the update rule's slots by variable, the same for variables that share a bucket; a
                checkpoint has a tensor `SLOT/NAME` for each.
            mesh: the ranks; those of `mesh.data` hold the same variables.
            shards_weights: see `Optimizer`.
        """
        super().__init__(name="optimizer_state")
        self.parameters, self.split, mesh = list(parameters), split, mesh or Mesh()
        self.names, self.targets = [each.name for each in parameters], [each.variable for each in parameters]
        pieces, buckets = {each.name: slice_of(each.shard) for each in parameters}, split.buckets if split else None
        self._pieces = functools.partial(held_pieces, pieces, slots, buckets, split.group.rank if split else 0)
        self._copies = mesh.replicas if split else mesh.data
        if split:
            self.slices = split.slices
            values = split.take(lambda index: _initial(self.parameters[index], shards_weights))
            self.masters = self._make(MASTER, values)
        else:
            self.slices = [[Slice(index, each.shard.size)] for index, each in enumerate(parameters)]
            self.masters = [
                each.variable if each.variable.dtype == tf.float32 else _state(f"{MASTER}/{each.name}", _initial(each))
                for each in parameters
            ]
        self.shards_weights = shards_weights
        firsts = [self.parameters[bucket.tensors[0]] for bucket in split.buckets] if split else self.parameters
        self.replicated = [not first.shard.is_divided for first in firsts]
        self.summed = [first.is_summed for first in firsts]
        self.slots = {}
        for slot in dict.fromkeys(itertools.chain.from_iterable(slots.values())):
            with_slot = zip(self.masters, (slot in slots[first.name] for first in firsts), strict=True)
            self.slots[slot] = self._make(slot, (tf.zeros(each.shape) if has else None for each, has in with_slot))

    def slots_of(self, store: int) -> list[tf.Variable]:
        """Returns the slots of the rule that a store has, in its order."""
        of_rule = (stores[store] for slot, stores in self.slots.items() if slot != AVERAGE)
        return [variable for variable in of_rule if variable is not None]

    def start_average(self) -> None:
        """Makes the average, if the state has one, that of the weights as they are; call it eagerly."""
        for master, average in zip(self.masters, self.slots.get(AVERAGE, []), strict=False):
            average.assign(own_copy(master))

    def swap_average(self) -> None:
        """Exchanges the average and the master weights and publishes; every rank must call it, eagerly."""
        for master, average in zip(self.masters, self.slots[AVERAGE], strict=True):
            weight = own_copy(master)
            master.assign(own_copy(average))
            average.assign(weight)
        self.publish()

    def copies(self) -> dict[int, tf.Variable]:
        """Returns, by the number of a store, the model's variable that has its rounded weights; none with a split."""
        if self.split:
            return {}
        pairs = enumerate(zip(self.targets, self.masters, strict=True))
        return {number: target for number, (target, master) in pairs if target is not master}

    def publish(self) -> None:
        """Writes the master weights, rounded, to the model's variables; every rank of a split must call it.

        Variables of sharded weights stay released.
        """
        if self.shards_weights:
            return
        for number in range(len(self.masters)) if self.split else ():
            for variable, value in self.gathered(number, f"weights.{number}"):
                variable.assign(value, read_value=False)
        for number, variable in self.copies().items():
            variable.assign(tf.cast(self.masters[number], variable.dtype), read_value=False)

    def gathered(self, bucket: int, name: str) -> Iterator[tuple[tf.Variable, tf.Tensor]]:
        """Yields the model's variables of a bucket with the weights of all ranks; every rank must call it.

        The name is unique in a graph.
        """
        dtype = self.targets[self.split.buckets[bucket].tensors[0]].dtype
        for index, value in self.split.gather(bucket, tf.cast(self.masters[bucket], dtype), name):
            yield self.targets[index], value

    def tensors_to_save(self) -> Iterator[TensorData]:
        """Yields the pieces that this rank saves, eagerly; all ranks together save each element of each tensor once.

        They are pieces of `master/NAME` and `SLOT/NAME`, with their elements. If the state is in the host's memory, the
        elements are a view of it. As long as they are held, an update writes to a copy of the variable.
        """
        for (kind, store), group in itertools.groupby(self._saved, lambda held: (held.kind, held.store)):
            variable = self._store(kind, store)
            # `read_value` is two operations, and training waits.
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            flat = np.asarray(memoryview(value)).reshape(-1)
            for held in group:
                yield TensorData(held.piece, flat[held.elements])

    def pieces_to_save(self) -> Iterator[TensorSlice]:
        """Yields the pieces of `tensors_to_save` without their elements, which costs nothing."""
        return (held.piece for held in self._saved)

    @functools.cached_property
    def _saved(self) -> list[Held]:
        return list(saved_pieces(self._pieces(), self._copies.rank, self._copies.size))

    def restore_buffers(self) -> dict[TensorSlice, np.ndarray]:
        """Returns the pieces that `load` reads, and flat memory for them."""
        return restore_buffers(self._held())

    def load(self, reader: TensorReader) -> None:
        """Reads this rank's pieces and publishes the weights, on all ranks together; raises as `TensorReader.read`.

        A checkpoint without an average starts it.
        """
        held = list(self._held())
        has_average = any(name.startswith(f"{AVERAGE}/") for name in reader.tensors)
        if not has_average:
            held = [each for each in held if not each.piece.name.startswith(f"{AVERAGE}/")]
        load_pieces(held, reader)
        if not has_average:
            self.start_average()
        self.publish()

    def weights(self, kind: str = MASTER) -> list[VariablePiece]:
        """Returns where the weights of a checkpoint belong on this rank; with the kind AVERAGE, their average."""
        held = [each for each in self._held() if each.piece.name.startswith(f"{MASTER}/")]
        return [each._replace(piece=replace(each.piece, name=kind + each.piece.name[len(MASTER) :])) for each in held]

    def _held(self) -> Iterator[VariablePiece]:
        """Yields every piece on this rank, in the order of kinds and stores."""
        for held in self._pieces():
            yield VariablePiece(held.piece, self._store(held.kind, held.store), held.elements)

    def _store(self, kind: str, store: int) -> tf.Variable:
        return (self.masters if kind == MASTER else self.slots[kind])[store]

    def _make(self, kind: str, values: Iterable[tf.Tensor | None]) -> list[tf.Variable | None]:
        names = [f"bucket_{number}" for number in range(len(self.slices))] if self.split else self.names
        return [
            None if value is None else _state(f"{kind}/{name}", value)
            for name, value in zip(names, values, strict=True)
        ]


def load_pieces(held: Iterable[VariablePiece], reader: TensorReader) -> None:
    """Assigns pieces of a checkpoint to variables, rounded to their dtype; raises what `TensorReader.read` does.

    The pieces of a variable are adjacent.
    """
    for _, group in itertools.groupby(held, lambda held: id(held.variable)):
        pieces = list(group)
        assign_parts(pieces[0].variable, [(each.elements, reader.read(each.piece).reshape(-1)) for each in pieces])


def weights_of(
    variables: Mapping[str, tf.Variable], shards: Mapping[str, VariableShard], kind: str
) -> list[VariablePiece]:
    """Returns where the weights of a checkpoint belong: the variables of a model; see `OptimizerState.weights`.

    `shards` has, by name, what a variable is of the whole tensor.
    """
    return [VariablePiece(renamed(slice_of(shards[name]), kind), variable) for name, variable in variables.items()]


def _initial(parameter: ParameterSpec, is_released: bool = False) -> tf.Tensor:
    """Returns the fp32 value that a master weight starts from; a variable that `is_released` has none."""
    variable = parameter.variable
    if parameter.initial is None or (variable.dtype == tf.float32 and not is_released):
        return tf.cast(variable, tf.float32)
    return parameter.initial()


def _state(name: str, initial: tf.Tensor) -> tf.Variable:
    return tf.Variable(own_copy(initial), trainable=False, name=name)
