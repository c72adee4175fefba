"""Lets a restore read files directly into the memory of variables: new memory is slow, and so is a copy.

TensorFlow has no interface for this. It is possible because a variable on the host has one buffer. Reading the variable
gives a tensor that shares the buffer; with copy-on-read set, it would be a copy. Another tensor, such as the initial
value, may share the buffer too.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.checkpoint import memory
from tftrain.checkpoint.tensor_slice import TensorSlice


class VariablePiece(NamedTuple):
    """A piece and where it belongs: a variable, and a range of the variable's elements in row-major order."""

    piece: TensorSlice
    variable: tf.Variable
    elements: slice = slice(None)


def restore_buffers(pieces: Iterable[VariablePiece]) -> dict[TensorSlice, np.ndarray]:
    """Returns flat memory for pieces: the memory of fp32 variables on the host, and new memory for other variables.

    Writing elements to a buffer of a variable's memory changes the variable at once. Other tensors that shared that
    memory, such as the initial value, do not change. Release the buffers before training: as long as they exist, an
    update copies the variable.
    """
    pieces, elements = list(pieces), {}
    for each in pieces:
        if _on_host(each.variable) and each.variable.ref() not in elements:
            _make_sole_owner(each.variable)
            elements[each.variable.ref()] = _elements(each.variable)
    buffers = memory.arrays(each.piece for each in pieces if each.variable.ref() not in elements)
    for each in pieces:
        if each.variable.ref() in elements:
            buffers[each.piece] = elements[each.variable.ref()][each.elements]
    return buffers


def assign_parts(variable: tf.Variable, parts: Sequence[tuple[slice, np.ndarray]]) -> None:
    """Assigns all elements of a variable, rounded to its dtype, unless they were read into its memory.

    `parts` are ranges of the variable's elements in row-major order, and the elements of each, flat, fp32. Elements
    in no range become zero.
    """
    if _on_host(variable) and all(np.shares_memory(_elements(variable), values) for _, values in parts):
        return
    if len(parts) == 1 and not _on_host(variable):
        flat = parts[0][1]
    else:
        flat = np.zeros(variable.shape.num_elements(), np.float32)
        for elements, values in parts:
            flat[elements] = values
    variable.assign(tf.cast(flat.reshape(variable.shape.as_list()), variable.dtype), read_value=False)


def _on_host(variable: tf.Variable) -> bool:
    return variable.dtype == tf.float32 and "CPU" in variable.device


def _elements(variable: tf.Variable) -> np.ndarray:
    """Returns the elements of a variable on the host, flat: a view of its memory, which the array keeps alive."""
    return variable.read_value().__array__().reshape(-1)


def _make_sole_owner(variable: tf.Variable) -> None:
    """Copies the buffer of a variable if another tensor shares it."""
    # TensorFlow copies a shared buffer before it writes rows, even none, and sets copy-on-read, which is then undone.
    indices, updates = _no_rows(tuple(variable.shape[1:]))
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=updates)
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


@functools.cache
def _no_rows(shape: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns indices and values of no rows of this shape, int32 [0] and fp32 [0, *shape]."""
    return tf.zeros([0], tf.int32), tf.zeros([0, *shape])
