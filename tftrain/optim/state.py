"""What an optimizer remembers: master weights and slots, whole on every rank or divided among ranks.

A store is one variable of each kind. Undivided there is one for each variable of the model and of its shape; divided,
one for each bucket of `StateSplit`, flat, with this rank's part of it. Checkpoints see neither: to them the state is
pieces of tensors with global names. Each rank gives those that it owns and takes those that it holds, and no rank
needs another one for that.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tftrain.checkpoint.piece import Piece, even_parts
from tftrain.checkpoint.reader import Reader
from tftrain.optim import restore_buffers
from tftrain.optim.restore_buffers import Place, RestoreBuffers
from tftrain.parallel.gradient_reduction import StateSplit
from tftrain.parallel.layout import Segment
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.tensor import Slice, own_copy, whole_shapes

MASTER = "master"
ADAM_SLOTS = ("adam_m", "adam_v")


class OptimizerState(tf.Module):
    """fp32 master weights and slots of named variables.

    Attributes:
        names: global name of each variable, such as `layer_00/attention/query/kernel`.
        targets: the model's variables, in the same order, of any floating dtype.
        masters: a variable for each store. A master weight is the model's own variable where that is fp32 and nothing
            is divided.
        slots: by the name of a slot, such as `adam_m`, its variable for each store.
        segments: of which variables' elements each store is made.
        split: how stores are divided among ranks; None: not.
    """

    def __init__(
        self,
        names: Sequence[str],
        variables: Sequence[tf.Variable],
        split: StateSplit | None = None,
        mesh: Mesh | None = None,
        slices: Mapping[str, Slice] | None = None,
        slots: Sequence[str] = ADAM_SLOTS,
    ):
        """Creates the state, with masters from the variables' values and slots of zero.

        Args:
            names, split: see above.
            variables: the targets.
            mesh: the ranks, among which `split` divides the state and `slices` the variables.
            slices: by name, of which whole tensor a variable is a part; those that are not in it are whole.
            slots: what the update rule keeps for each element beside its master weight; a checkpoint has a tensor
                `SLOT/NAME` of each.

        Raises:
            ValueError: the names of two slots are equal, or one is `master`.
        """
        super().__init__(name="optimizer_state")
        if MASTER in slots or len(set(slots)) != len(slots):
            raise ValueError(f"slots {list(slots)}: expected names that differ from each other and from {MASTER}")
        self.names, self.targets, self.split = list(names), list(variables), split
        self._mesh, self._slices = mesh or Mesh(), slices or {}
        if split:
            self.segments = split.segments
            self.masters = self._make("master", split.take([tf.cast(v, tf.float32) for v in variables]))
        else:
            self.segments = [[Segment(i, v.shape.num_elements())] for i, v in enumerate(variables)]
            self.masters = [
                variable if variable.dtype == tf.float32 else _state(f"master/{name}", tf.cast(variable, tf.float32))
                for name, variable in zip(names, variables, strict=True)
            ]
        self.slots = {slot: self._make(slot, [tf.zeros(master.shape) for master in self.masters]) for slot in slots}

    def publish(self) -> None:
        """Writes the master weights, rounded, to the model's variables; every rank of a split must call it."""
        if self.split:
            dtypes = [self.targets[bucket.tensors[0]].dtype for bucket in self.split.buckets]
            parts = [tf.cast(master, dtype) for master, dtype in zip(self.masters, dtypes, strict=True)]
            for index, value in self.split.gather(parts, "weights"):
                self.targets[index].assign(value, read_value=False)
            return
        for variable, master in zip(self.targets, self.masters, strict=True):
            if variable is not master:
                variable.assign(tf.cast(master, variable.dtype), read_value=False)

    def shapes(self) -> dict[str, list[int]]:
        """Returns the shapes of the whole tensors, by name: `master/NAME`, and `SLOT/NAME` of each slot."""
        whole = whole_shapes(self._targets(), self._slices)
        return {f"{kind}/{name}": whole[name] for kind in (MASTER, *self.slots) for name in self.names}

    def tensors_to_save(self) -> Iterator[tuple[Piece, np.ndarray]]:
        """Yields what this rank gives to a checkpoint, eagerly; the ranks' pieces are all tensors, each element once.

        Yields:
            `master/NAME` or `SLOT/NAME`, or a piece of it, and its elements, flat: where the state is
            in the host's memory a view of them, which is good until the next update.
        """
        for _, group in itertools.groupby(self._parts_to_save(), lambda part: id(part[0].variable)):
            of_store = list(group)
            flat = np.asarray(memoryview(of_store[0][0].variable.read_value())).reshape(-1)
            for held, start, stop in of_store:
                yield held.piece.part(start, stop), flat[held.stretch][start:stop]

    def pieces_to_save(self) -> Iterator[Piece]:
        """Yields the pieces of `tensors_to_save` alone, which costs nothing."""
        for held, start, stop in self._parts_to_save():
            yield held.piece.part(start, stop)

    def _parts_to_save(self) -> list[tuple[Place, int, int]]:
        held = [
            each
            for each in self._held()
            # All tensor parallel ranks have the same of what is not divided among them.
            if self._mesh.tensor.rank == 0 or _variable_of(each.piece) in self._slices
        ]
        if self.split:
            parts = [(index, 0, each.piece.size) for index, each in enumerate(held)]
        else:
            data = self._mesh.data
            parts = even_parts([each.piece for each in held], data.size, data.rank)
        return [(held[index], start, stop) for index, start, stop in parts]

    def restore_buffers(self) -> RestoreBuffers:
        """Returns what `load` reads, and memory for it, flat."""
        places = list(self._held())
        if self.split:
            places += _weights(self._targets(), self._slices, self._mesh.tensor.rank)
        return RestoreBuffers(places)

    def load(self, reader: Reader) -> None:
        """Takes what this rank holds from a checkpoint, and gives the model's variables the weights.

        Raises:
            CheckpointError: it lacks a tensor, or has it in another shape or dtype, or can't be read.
        """
        for _, group in itertools.groupby(self._held(), lambda held: id(held.variable)):
            of_store = list(group)
            parts = [(held.stretch, reader.read(held.piece).reshape(-1)) for held in of_store]
            restore_buffers.give(of_store[0].variable, parts)
        if self.split:
            load_weights(self._targets(), self._slices, self._mesh.tensor.rank, reader)
        else:
            self.publish()

    def _targets(self) -> dict[str, tf.Variable]:
        return dict(zip(self.names, self.targets, strict=True))

    def _held(self) -> Iterator[Place]:
        """Yields every piece that is on this rank, those of one store together."""
        for kind, stores in {MASTER: self.masters, **self.slots}.items():
            places = self.split.owned() if self.split else ((i, i, slice(None), None) for i in range(len(stores)))
            for number, index, place, stretch in places:
                name, shape = self.names[index], self.targets[index].shape
                bounds = stretch and (stretch.start, stretch.stop)
                piece = _block(f"{kind}/{name}", shape, self._slices.get(name), self._mesh.tensor.rank, bounds)
                if piece.size:
                    yield Place(piece, stores[number], place)

    def _make(self, kind: str, values: Sequence[tf.Tensor]) -> list[tf.Variable]:
        places = [f"bucket_{number}" for number in range(len(values))] if self.split else self.names
        return [_state(f"{kind}/{place}", value) for place, value in zip(places, values, strict=True)]


def load_weights(
    variables: Mapping[str, tf.Variable], slices: Mapping[str, Slice], tensor_rank: int, reader: Reader
) -> None:
    """Gives variables the master weights of a checkpoint, rounded to their dtype.

    Args:
        variables: of the model, by global name.
        slices: by name, of which whole tensor a variable is a part; those that are not in it are whole.
        tensor_rank: of the part.
        reader: the checkpoint.

    Raises:
        CheckpointError: it lacks a tensor, or has it in another shape or dtype, or can't be read.
    """
    for piece, variable, stretch in _weights(variables, slices, tensor_rank):
        restore_buffers.give(variable, [(stretch, reader.read(piece).reshape(-1))])


def weight_restore_buffers(
    variables: Mapping[str, tf.Variable], slices: Mapping[str, Slice], tensor_rank: int
) -> RestoreBuffers:
    """Returns what `load_weights` reads, and memory for it, flat; for the arguments, see there."""
    return RestoreBuffers(_weights(variables, slices, tensor_rank))


def _weights(variables: Mapping[str, tf.Variable], slices: Mapping[str, Slice], tensor_rank: int) -> Iterator[Place]:
    for name, variable in variables.items():
        yield Place(_block(f"master/{name}", variable.shape, slices.get(name), tensor_rank), variable)


def _block(name: str, shape: tf.TensorShape, part: Slice | None, tensor_rank: int, stretch=None) -> Piece:
    """Returns the piece that a variable of this shape is, or a stretch of it."""
    if part is None:
        return Piece.block(name, shape.as_list(), "F32", stretch=stretch)
    offset = [part.bounds[tensor_rank] if axis == part.axis else 0 for axis in range(len(part.whole))]
    return Piece.block(name, part.whole, "F32", offset, part.shape(tensor_rank), stretch)


def _variable_of(piece: Piece) -> str:
    return piece.name.partition("/")[2]


def _state(name: str, initial: tf.Tensor) -> tf.Variable:
    return tf.Variable(own_copy(initial), trainable=False, name=name)
