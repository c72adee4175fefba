"""The memory of variables, for a restore to read into: new memory is slow, and a copy takes time.

TensorFlow has no word for it, so this is what holds: a variable on the host has one buffer, of which reading gives a
tensor and not a copy, unless something has asked it to copy on each read. Another tensor may have the same buffer, such
as the initial value.
"""

import functools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.checkpoint import memory
from tftrain.checkpoint.piece import Piece


class Place(NamedTuple):
    """Where a piece belongs: the variable, of fp32 if it can be read right into it, and a stretch of its elements."""

    piece: Piece
    variable: tf.Variable
    stretch: slice = slice(None)


class RestoreBuffers(Mapping[Piece, np.ndarray]):
    """Memory for pieces, flat: of the variables where it can be, else new.

    What is written there is in the variables; what others remember of them, such as their initial values, is not
    touched. Give it back before training: as long as it is held, an update copies the variable. A variable's memory is
    found when a piece of it is asked for, which takes a while: reading threads do that while others wait for the disk.
    """

    def __init__(self, places: Iterable[Place]):
        """Takes no memory of a variable before its piece is asked for."""
        by_host = {True: {}, False: {}}
        for place in places:
            by_host[_on_host(place.variable)][place.piece] = place
        self._places: dict[Piece, Place] = by_host[True]
        self._elsewhere = memory.arrays(by_host[False])
        self._elements: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def __getitem__(self, piece: Piece) -> np.ndarray:
        if piece in self._elsewhere:
            return self._elsewhere[piece]
        _, variable, stretch = self._places[piece]
        with self._lock:
            if id(variable) not in self._elements:
                _make_sole_owner(variable)
                self._elements[id(variable)] = _elements(variable)
            return self._elements[id(variable)][stretch]

    def __iter__(self) -> Iterator[Piece]:
        return iter({**self._places, **self._elsewhere})

    def __len__(self) -> int:
        return len({**self._places, **self._elsewhere})


def give(variable: tf.Variable, parts: Sequence[tuple[slice, np.ndarray]]) -> None:
    """Gives a variable all its elements, unless they have been read into it.

    Args:
        variable: of any shape and floating dtype, to which the elements are rounded.
        parts: stretches of its elements, and those, flat, fp32.
    """
    if _on_host(variable):
        mine = _elements(variable)
        if all(np.shares_memory(mine, values) for _, values in parts):
            return
    if len(parts) == 1 and not _on_host(variable):
        whole = parts[0][1]
    else:
        whole = np.zeros(variable.shape.num_elements(), np.float32)
        for stretch, values in parts:
            whole[stretch] = values
    variable.assign(tf.cast(whole.reshape(variable.shape.as_list()), variable.dtype), read_value=False)


def _on_host(variable: tf.Variable) -> bool:
    return variable.dtype == tf.float32 and "CPU" in variable.device


def _elements(variable: tf.Variable) -> np.ndarray:
    """Returns the elements of a variable on the host, flat, in its own memory, which they keep."""
    return variable.read_value().__array__().reshape(-1)


def _make_sole_owner(variable: tf.Variable) -> None:
    """Gives a variable a buffer of its own if another tensor has it, too."""
    # TensorFlow does that before it writes rows, here none. From then on each read would be a copy.
    indices, updates = _no_rows(tuple(variable.shape[1:]))
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=updates)
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


@functools.cache
def _no_rows(shape: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers of no rows of this shape, and those rows."""
    return tf.zeros([0], tf.int32), tf.zeros([0, *shape])
