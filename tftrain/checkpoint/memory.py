"""Memory for a whole state: one block that is divided into arrays.

The kernel clears and maps a page of new memory at the first write. With pages of 2 MiB that costs little. With pages of
4 KiB it costs more than reading a file. NumPy requests large pages for arrays of at least 4 MiB. Most tensors are
smaller, so they share a block.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from tftrain.checkpoint.tensor_slice import DTYPES, TensorData, TensorSlice

# TensorFlow uses an array without a copy if its address is a multiple of this.
ALIGNMENT = 64
PAGE_BYTES = 2**12
CACHED_ELEMENTS = 2**16


def arrays(pieces: Iterable[TensorSlice]) -> dict[TensorSlice, np.ndarray]:
    """Returns an uninitialized array for each slice, flat."""
    pieces = list(pieces)
    block = np.empty(sum(piece.nbytes + ALIGNMENT for piece in pieces) + ALIGNMENT, np.uint8)
    return divided(block[-block.ctypes.data % ALIGNMENT :], pieces, ALIGNMENT)


def divided(block: np.ndarray, pieces: Iterable[TensorSlice], alignment: int = 1) -> dict[TensorSlice, np.ndarray]:
    """Returns the memory in a block, uint8, for the elements of each slice, one after the other, flat."""
    arrays, at = {}, 0
    for piece in pieces:
        arrays[piece] = block[at : at + piece.nbytes].view(DTYPES[piece.dtype])
        at += piece.nbytes + -piece.nbytes % alignment
    return arrays


def is_finite(values: np.ndarray) -> bool:
    """Returns whether no element is an infinity or a NaN; as fast as the memory, without a temporary array."""
    if values.dtype.kind != "f":
        return True
    with np.errstate(invalid="ignore"):
        parts = (values[start : start + CACHED_ELEMENTS] for start in range(0, values.size, CACHED_ELEMENTS))
        # Minimum and maximum pass a NaN on. The second pass finds its part in the cache.
        return all(np.isfinite(part.min()) and np.isfinite(part.max()) for part in parts)


def first_not_finite(tensors: Iterable[TensorData]) -> str:
    """Returns the name of the first tensor with an element that is not finite; "" if there is none."""
    return next((piece.name for piece, values in tensors if not is_finite(values)), "")


def move(tensors: list[TensorData], target: Mapping[TensorSlice, np.ndarray]) -> None:
    """Copies tensors into the memory for their slices, and empties the list, so that nothing holds them any more."""
    while tensors:
        piece, values = tensors.pop()
        np.copyto(target[piece], values)


def map_pages(arrays: Iterable[np.ndarray]) -> None:
    """Writes to every page of new arrays, so that the kernel maps the pages now and not during a save."""
    for values in arrays:
        values[:: PAGE_BYTES // values.itemsize] = 0
