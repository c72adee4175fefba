"""A file of a checkpoint that is read in blocks, each of which is used while it is in the processor's cache."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tftrain.checkpoint.errors import CheckpointError
from tftrain.files.reading import POINTER, POINTER_BYTES, is_pointer

BLOCK_BYTES = 2**21
Blocks = Callable[..., Iterator[np.ndarray]]


def open_file(path: Path) -> int:
    """Returns a descriptor to read a file; raises a CheckpointError if it can't be read or is no regular file."""
    try:
        # Opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "a symbolic link" if path.is_symlink() else error.strerror
        raise CheckpointError(f"{path}: can't be read: {reason}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: not a regular file")
    if is_pointer(os.pread(descriptor, POINTER_BYTES, 0)):
        os.close(descriptor)
        raise CheckpointError(f"{path}: {POINTER}")
    return descriptor


@contextlib.contextmanager
def opened(path: Path, size: int) -> Iterator[Blocks]:
    """Opens a file of a known size inside a `with` statement.

    Yields:
        A function that yields the bytes [begin, end) of the file in arrays, each of them valid until the next one. With
        a target, uint8 [end - begin], they are parts of it, which stay.

    Raises:
        CheckpointError: the file can't be read, has another size, or becomes shorter.
    """
    descriptor, scratch = open_file(path), np.empty(BLOCK_BYTES, np.uint8)

    def blocks(begin: int, end: int, target: np.ndarray | None = None) -> Iterator[np.ndarray]:
        while begin < end:
            block = scratch[: end - begin] if target is None else target[begin - end :][:BLOCK_BYTES]
            try:
                read = os.preadv(descriptor, [block], begin)
            except OSError as error:
                raise CheckpointError(f"{path}: can't be read: {error.strerror}") from error
            if not read:
                raise CheckpointError(f"{path}: damaged: it ends before its {end - begin} last bytes")
            yield block[:read]
            begin += read

    try:
        if (actual := os.fstat(descriptor).st_size) != size:
            raise CheckpointError(f"{path}: damaged: it has {actual} bytes, expected {size}")
        with contextlib.suppress(OSError):  # The kernel reads ahead while this thread hashes.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield blocks
    finally:
        os.close(descriptor)
