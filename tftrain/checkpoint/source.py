"""A file that is read in blocks: from the page cache if it is there, and past it if it is not.

What the kernel does to bring a file into its page cache takes the processor as long as hashing it. A direct read leaves
the processor to the hashing, and the cache to others. But it has rules: memory, place and length are whole pages. So a
file is read into one block of memory, and what is wanted is handed out from there while it is in the processor's cache.
"""

import contextlib
import errno
import fcntl
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.memory import PAGE_BYTES

# How many bytes of a file are looked for in the page cache: if all are there, so is most of it.
PROBES = 3
# Pythons that were built for an old C library lack it.
NOWAIT = getattr(os, "RWF_NOWAIT", None)


def open_file(path: Path) -> int:
    """Opens a regular file for reading and returns its descriptor.

    Raises:
        CheckpointError: it is missing, a symbolic link or no file, or can't be read.
    """
    try:
        # Opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "a symbolic link" if path.is_symlink() else error.strerror
        raise CheckpointError(f"{path}: can't be read: {reason}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: not a regular file")
    return descriptor


class Source:
    """An open file of a known size; close it, or use it as a context.

    Attributes:
        path: of the file.
        direct: whether the page cache is passed by.
    """

    def __init__(self, path: Path, size: int, block: np.ndarray, alone: bool):
        """Opens the file.

        Args:
            path: of the file.
            size: its bytes.
            block: uint8 memory to read into; for direct reads of whole pages, and beginning with one.
            alone: nobody else on this host is about to read the file, so that the page cache would serve nobody.

        Raises:
            CheckpointError: it can't be opened, or has another size.
        """
        self.path, self._block, self._begin, self._end = path, block, 0, 0
        self._descriptor = open_file(path)
        found = os.fstat(self._descriptor).st_size
        if found != size:
            self.close()
            raise CheckpointError(f"{path}: damaged: it has {found} bytes, expected {size}")
        self.direct = alone and not self._cached(size) and self._set_direct(True)
        if not self.direct:
            # The disk goes on reading while this thread hashes.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def blocks(self, begin: int, end: int) -> Iterator[np.ndarray]:
        """Yields these bytes of the file in order, in arrays that are good until the next one is asked for.

        Raises:
            CheckpointError: they can't be read, or the file has become shorter.
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

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _read(self, begin: int, end: int) -> None:
        """Reads a block in which `begin` lies; directly it may reach beyond `end`."""
        place, block = begin, self._block[: end - begin]
        if self.direct:
            place, block = begin - begin % PAGE_BYTES, self._block
        try:
            read = os.preadv(self._descriptor, [block], place)
        except OSError as error:
            if self.direct and error.errno == errno.EINVAL:  # It wants larger pages.
                self.direct = self._set_direct(False)
                return self._read(begin, end)
            raise CheckpointError(f"{self.path}: can't be read: {error.strerror}") from error
        self._begin, self._end = place, place + read
        if self._end <= begin:
            raise CheckpointError(f"{self.path}: damaged: it ends before its {end - begin} last bytes")

    def _cached(self, size: int) -> bool:
        """Whether most of the file is in the page cache, or can't be asked for.

        The places are drawn, since each question makes the kernel read the page that it is about.
        """
        if NOWAIT is None:
            return True
        try:
            for _ in range(PROBES):
                os.preadv(self._descriptor, [bytearray(1)], random.randrange(max(size, 1)), NOWAIT)
        except BlockingIOError:
            return False
        except (OSError, NotImplementedError):  # A file system that can't tell, such as NFS.
            pass
        return True

    def _set_direct(self, direct: bool) -> bool:
        """Passes the page cache by, or no longer; returns whether it is: not every file system lets itself be told."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)
        except OSError:
            return not direct
        return direct
