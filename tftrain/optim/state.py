"""What an optimizer remembers: master weights and both moments, whole on every rank or divided among ranks.

A store is one variable of each kind. Undivided there is one for each variable of the model and of its shape; divided,
one for each bucket of `StateSplit`, flat, with this rank's part of it. Checkpoints see neither: to them the state is
whole tensors by global name, collected from the ranks and handed out to them.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.layout import Segment
from tftrain.parallel.mesh import Group
from tftrain.parallel.state_split import StateSplit
from tftrain.parallel.tensor import Slice, own_copy, whole_shapes

KINDS = ("master", "adam_m", "adam_v")


class OptimizerState(tf.Module):
    """fp32 master weights and moments of named variables.

    Attributes:
        names: global name of each variable, such as `layer_00/attention/query/kernel`.
        targets: the model's variables, in the same order, of any floating dtype.
        masters, m, v: a variable for each store. A master weight is the model's own variable where that is fp32 and
            nothing is divided.
        segments: of which variables' elements each store is made.
        split: how stores are divided among ranks; None: not.
    """

    def __init__(
        self,
        names: Sequence[str],
        variables: Sequence[tf.Variable],
        split: StateSplit | None = None,
        tensor: Group | None = None,
        slices: Mapping[str, Slice] | None = None,
    ):
        """Creates the state, with masters from the variables' values and moments of zero.

        Args:
            names, split: see above.
            variables: the targets.
            tensor: the ranks that hold the other slices of variables in `slices`.
            slices: by name, of which whole tensor a variable is a part; those that are not in it are whole.
        """
        super().__init__(name="optimizer_state")
        self.names, self.targets, self.split = list(names), list(variables), split
        self._tensor, self._slices = tensor or Group(), slices or {}
        if split:
            self.segments = split.segments
            self.masters = self._make("master", split.take([tf.cast(v, tf.float32) for v in variables]))
        else:
            self.segments = [[Segment(i, v.shape.num_elements())] for i, v in enumerate(variables)]
            self.masters = [
                variable if variable.dtype == tf.float32 else _state(f"master/{name}", tf.cast(variable, tf.float32))
                for name, variable in zip(names, variables, strict=True)
            ]
        self.m = self._make("adam_m", [tf.zeros(master.shape) for master in self.masters])
        self.v = self._make("adam_v", [tf.zeros(master.shape) for master in self.masters])

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
        """Returns the shapes of the whole tensors, by name: `master/NAME`, `adam_m/NAME`, `adam_v/NAME`."""
        whole = whole_shapes(dict(zip(self.names, self.targets, strict=True)), self._slices)
        return {f"{kind}/{name}": whole[name] for kind in KINDS for name in self.names}

    def collect(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields name and whole value of every tensor of the state; every rank must take all of them, eagerly."""
        for kind, stores in zip(KINDS, (self.masters, self.m, self.v), strict=True):
            local = enumerate(stores)
            if self.split:
                local = self.split.gather([store.read_value() for store in stores], f"collect.{kind}")
            if self._tensor.size > 1:
                # Owners may differ between tensor parallel ranks, whose slices may: the joins need one order.
                local = sorted(local, key=lambda pair: pair[0])
            for index, value in local:
                name = self.names[index]
                yield f"{kind}/{name}", self._join(name, value, f"collect.{kind}.{name}")

    def load(self, name: str, whole: np.ndarray) -> None:
        """Takes this rank's part of one whole tensor; when all have been given, call `publish`.

        Args:
            name: one of `shapes`.
            whole: of that shape.
        """
        kind, _, of = name.partition("/")
        stores = dict(zip(KINDS, (self.masters, self.m, self.v), strict=True))[kind]
        index = self.names.index(of)
        if of in self._slices:
            whole = self._slices[of].take(whole, self._tensor.rank)
        if not self.split:
            stores[index].assign(tf.cast(whole, tf.float32))
            return
        flat = np.reshape(whole, [-1])
        for number, part, stretch in self.split.place(index):
            stores[number][part].assign(tf.cast(flat[stretch], tf.float32))

    def _make(self, kind: str, values: Sequence[tf.Tensor]) -> list[tf.Variable]:
        places = [f"bucket_{number}" for number in range(len(values))] if self.split else self.names
        return [_state(f"{kind}/{place}", value) for place, value in zip(places, values, strict=True)]

    def _join(self, name: str, value: tf.Tensor, collective: str) -> np.ndarray:
        """Returns the whole of which `value` is this rank's slice."""
        if name not in self._slices or self._tensor.size == 1:
            return np.asarray(value)
        part, size = self._slices[name], self._tensor.size
        flat = collectives.all_gather_rows(self._tensor, tf.reshape(value, [-1]), collective).numpy()
        shapes = [part.shape(rank) for rank in range(size)]
        ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1]
        return part.join([np.reshape(each, shape) for each, shape in zip(np.split(flat, ends), shapes, strict=True)])


def _state(name: str, initial: tf.Tensor) -> tf.Variable:
    return tf.Variable(own_copy(initial), trainable=False, name=name)
