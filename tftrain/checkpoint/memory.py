"""Memory for a whole state: one block, cut into arrays.

The kernel clears and maps new memory when it is first written. In pages of 2 MiB that costs little, in pages of 4 KiB
more than reading a file. NumPy asks for large pages for arrays of 4 MiB and more, but most tensors are smaller, so they
share a block.
"""

from collections.abc import Iterable

import numpy as np

from tftrain.checkpoint.piece import DTYPES, Piece

# TensorFlow computes with arrays that lie so, and only with them, without a copy.
ALIGNMENT = 64
PAGE_BYTES, LARGE_PAGE_BYTES = 2**12, 2**21


def arrays(pieces: Iterable[Piece]) -> dict[Piece, np.ndarray]:
    """Returns memory for the elements of pieces, flat, with anything in it."""
    places, end = {}, 0
    for piece in pieces:
        places[piece] = end
        end += piece.nbytes + -piece.nbytes % ALIGNMENT
    block = _aligned(end, ALIGNMENT)
    return {piece: block[at : at + piece.nbytes].view(DTYPES[piece.dtype]) for piece, at in places.items()}


def blocks(count: int, size: int) -> list[np.ndarray]:
    """Returns so many arrays of so many bytes, each of whole large pages if the size is: a disk fills those at once."""
    return list(_aligned(count * size, LARGE_PAGE_BYTES).reshape(count, size))


def touch(memory: Iterable[np.ndarray]) -> None:
    """Writes to every page of new memory, so that it need not be mapped when it is needed."""
    for values in memory:
        values[:: PAGE_BYTES // values.itemsize] = 0


def _aligned(size: int, alignment: int) -> np.ndarray:
    block = np.empty(size + alignment, np.uint8)
    begin = -block.ctypes.data % alignment
    return block[begin : begin + size]
