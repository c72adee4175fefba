"""The memory of variables, for a restore to read into: new memory is slow, and a copy takes time.

TensorFlow has no word for it, so this is what holds: a variable on the host has one buffer, of which reading gives a
tensor and not a copy, unless something has asked it to copy on each read. Another tensor may have the same buffer, such
as the initial value.
"""

from collections.abc import Iterable, Sequence
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


def room(places: Iterable[Place]) -> dict[Piece, np.ndarray]:
    """Returns memory for pieces, flat: of the variables where it can be, else new.

    What is written there is in the variables; what others remember of them, such as their initial values, is not
    touched. Give it back before training: as long as it is held, an update copies the variable.
    """
    found, views, elsewhere = {}, {}, []
    for piece, variable, stretch in places:
        if _on_host(variable):
            if id(variable) not in views:
                _make_sole_owner(variable)
                views[id(variable)] = _elements(variable)
            found[piece] = views[id(variable)][stretch]
        else:
            elsewhere.append(piece)
    return found | memory.arrays(elsewhere)


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
    tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=tf.zeros([0], tf.int32), updates=tf.zeros([0, *variable.shape[1:]])
    )
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
