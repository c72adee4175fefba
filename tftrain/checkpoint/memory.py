"""Memory for a whole state: one block, cut into arrays.

The kernel clears and maps new memory when it is first written. In pages of 2 MiB that costs little, in pages of 4 KiB
more than reading a file. NumPy asks for large pages for arrays of 4 MiB and more, but most tensors are smaller, so they
share a block.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from tftrain.checkpoint.piece import DTYPES, Piece

# TensorFlow computes with arrays that lie so, and only with them, without a copy.
ALIGNMENT = 64
PAGE_BYTES = 2**12


def arrays(pieces: Iterable[Piece], there: Mapping[Piece, np.ndarray] | None = None) -> dict[Piece, np.ndarray]:
    """Returns memory for the elements of pieces, flat, with anything in it; what `there` has is from there."""
    found = {piece: (there or {}).get(piece) for piece in pieces}
    places, end = {}, 0
    for piece in (piece for piece, values in found.items() if values is None):
        places[piece] = end
        end += piece.nbytes + -piece.nbytes % ALIGNMENT
    block = np.empty(end + ALIGNMENT, np.uint8)
    block = block[-block.ctypes.data % ALIGNMENT :]
    return found | {piece: block[at : at + piece.nbytes].view(DTYPES[piece.dtype]) for piece, at in places.items()}


def touch(memory: Iterable[np.ndarray]) -> None:
    """Writes to every page of new memory, so that it need not be mapped when it is needed."""
    for values in memory:
        values[:: PAGE_BYTES // values.itemsize] = 0
