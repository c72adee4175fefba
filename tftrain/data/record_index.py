"""The index of a TFRecord file: the byte offset of each record, as a .npy file beside it."""

import contextlib
import io
import os
import stat
import tempfile

import numpy as np

# Bytes of a record around its payload: the length and two checksums.
FRAME_BYTES = 16
_INDEX_IN_MEMORY = 1 << 20


def read_index(path: str, size: int) -> np.ndarray | None:
    """Returns the offsets from the index of a file of `size` bytes, or None if no index matches the file.

    The header of the index must equal the .npy header of an array of that many offsets. Any other header is rejected
    before memory is allocated for the array.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would block.
        with open(os.open(path + ".index", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            count = (status.st_size - len(_index_header(0))) // 8
            if not stat.S_ISREG(status.st_mode) or not 2 <= count <= size // FRAME_BYTES + 1:
                return None
            header = _index_header(count)
            if status.st_size != len(header) + 8 * count or file.read(len(header)) != header:
                return None
            if status.st_size > _INDEX_IN_MEMORY:
                offsets = np.memmap(file, np.uint64, "r", len(header), (count,))
            else:
                offsets = np.fromfile(file, np.uint64, count)
    except (OSError, ValueError):
        return None
    return offsets if len(offsets) == count and _fit(offsets, size) else None


def _fit(offsets: np.ndarray, size: int) -> bool:
    """Returns whether the offsets divide a file of `size` bytes into records."""
    if offsets[0] != 0 or offsets[-1] != size or offsets.max() > size:
        return False
    blocks = range(0, len(offsets) - 1, _INDEX_IN_MEMORY)
    return all(
        (np.diff(offsets[begin : begin + _INDEX_IN_MEMORY + 1].view(np.int64)) >= FRAME_BYTES).all() for begin in blocks
    )


def _index_header(count: int) -> bytes:
    """Returns the .npy header of a uint64 [count] array."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<u8", "fortran_order": False, "shape": (count,)})
    return header.getvalue()


def write_index(path: str, offsets: np.ndarray) -> None:
    """Writes the index of a file atomically: another process sees the whole index or none."""
    folder, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder or ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, offsets, allow_pickle=False)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path + ".index")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
