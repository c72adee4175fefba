"""A file that is read in blocks: from the page cache if the file is cached, else by direct reads.

Copying a file through the page cache costs as much processor time as hashing it. A direct read saves that time, and
leaves the page cache to other files. Direct reads need whole pages: address, offset and length are multiples of the
page size. So the file is read into one block of memory, and callers receive parts of the block while it is in the
processor's cache.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.memory import PAGE_BYTES
from tftrain.files.reading import POINTER, POINTER_BYTES, is_pointer

# Number of pages of a file that are looked for in the page cache: if all are cached, so is most of the file.
PROBES = 3
_LIBC = ctypes.CDLL(None)


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


class ShardFile:
    """An open file of a known size; close it, or use it as a context. `direct` reads bypass the page cache."""

    def __init__(self, path: Path, size: int, block: np.ndarray, alone: bool):
        """Opens the file to read it into a block, uint8, which for direct reads consists of whole pages.

        If no other process on this host reads the file (`alone`), the page cache is of no use.

        Raises:
            CheckpointError: the file can't be opened, or has another size.
        """
        self.path, self._block, self._begin, self._end = path, block, 0, 0
        self._descriptor = open_file(path)
        actual = os.fstat(self._descriptor).st_size
        if actual != size:
            self.close()
            raise CheckpointError(f"{path}: damaged: it has {actual} bytes, expected {size}")
        self.direct = alone and not self._cached(size) and self._set_direct(True)
        if not self.direct:
            # The kernel reads ahead while this thread hashes.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def blocks(self, begin: int, end: int) -> Iterator[np.ndarray]:
        """Yields the bytes [begin, end) of the file in arrays, each of them valid until the next one.

        Raises:
            CheckpointError: the bytes can't be read, or the file has become shorter.
        """
        while begin < end:
            if not self._begin <= begin < self._end:
                self._read(begin, end)
            stop = min(end, self._end)
            yield self._block[begin - self._begin : stop - self._begin]
            begin = stop

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _read(self, begin: int, end: int) -> None:
        """Reads a block that contains `begin`; a direct read may reach beyond `end`."""
        offset, block = begin, self._block[: end - begin]
        if self.direct:
            offset, block = begin - begin % PAGE_BYTES, self._block
        try:
            read = os.preadv(self._descriptor, [block], offset)
        except OSError as error:
            if self.direct and error.errno == errno.EINVAL:  # The file system needs larger pages.
                self.direct = self._set_direct(False)
                return self._read(begin, end)
            raise CheckpointError(f"{self.path}: can't be read: {error.strerror}") from error
        self._begin, self._end = offset, offset + read
        if self._end <= begin:
            raise CheckpointError(f"{self.path}: damaged: it ends before its {end - begin} last bytes")

    def _cached(self, size: int) -> bool:
        """Whether most of the file is in the page cache; True as well if the system doesn't tell.

        A read that must not wait doesn't tell: it starts to read the page, and a fast disk has it in time.
        """
        pages = -(-size // PAGE_BYTES)
        with contextlib.suppress(OSError, ValueError, AttributeError, NotImplementedError):
            for page in random.sample(range(pages), min(PROBES, pages)):
                # ctypes takes writable memory only; this is private, so nothing is written to the file.
                with mmap.mmap(self._descriptor, 1, access=mmap.ACCESS_COPY, offset=page * PAGE_BYTES) as mapped:
                    first, state = ctypes.c_char.from_buffer(mapped), ctypes.c_ubyte(1)
                    _LIBC.mincore(ctypes.byref(first), ctypes.c_size_t(1), ctypes.byref(state))
                    del first  # It would keep the mapping open.
                if not state.value & 1:
                    with contextlib.suppress(BlockingIOError):  # Network file systems, which read ahead, refuse it.
                        os.preadv(self._descriptor, [bytearray(1)], page * PAGE_BYTES, os.RWF_NOWAIT)
                    return False
        return True

    def _set_direct(self, direct: bool) -> bool:
        """Turns direct reads on or off, and returns whether they are on: not every file system permits them."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)
        except OSError:
            return not direct
        return direct
