"""Gzip-compressed TFRecord files, read at random through uncompressed copies.

Gzip has no random access. So each compressed file is uncompressed once, into a hidden file beside it, or in the
system's temporary folder if its own folder cannot be written or is too full. The name of the copy contains the size and
the time of the file, so a changed file gets a new copy. Copies stay for the next run.

Ranks share the copies. A lock lets one process write a copy while others of its machine go on to the next file. Where
a file system has no locks, several processes may write one copy; each writes a file of its own and renames it, so no
process reads an unfinished one.
"""

import array
import contextlib
import errno
import fcntl
import glob
import gzip
import hashlib
import logging
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from tftrain.data.errors import DataError
from tftrain.data.record_index import write_index
from tftrain.data.records import (
    FOOTER_BYTES,
    GZIP_MAGIC,
    HEADER_BYTES,
    RecordSet,
    check_size,
    checked_length,
    masked_crc,
)

logger = logging.getLogger(__name__)

_GB = 1e9
_LEAST_RATIO = 2


def is_gzip(path: str) -> bool:
    """Returns whether a file begins as gzip files do. Returns False if it cannot be read, which others report."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    except OSError:
        return False


def first_record(path: str) -> tuple[bytes, str]:
    """Returns the first record of a file, compressed or not, and "path: byte offset" for error messages.

    Raises:
        DataError: the file cannot be read, or its first record is damaged.
    """
    if not is_gzip(path):
        records = RecordSet([path])
        return records.read(0), records.place(0)
    for _, payload, footer in _stream(path):
        if footer != struct.pack("<I", masked_crc(payload)):
            raise DataError(
                f"{path}: byte 0 of the uncompressed records: the record's checksum does not fit its {len(payload)} "
                "bytes: the file is damaged; copy or prepare it again"
            )
        return payload, f"{path}: byte 0"
    raise DataError(f"{path}: byte 0: the file is empty; copy it again, or leave it out")


def uncompressed_copies(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Uncompresses the gzip files among TFRecord files, except those that have a copy already.

    Returns:
        The files to read, and what error messages call them, in the order of `paths`. A file that is not gzip stands
        for itself.

    Raises:
        DataError: a file is damaged or holds no TFRecords, or no folder has space for its copy.
    """
    copies = {path: path for path in paths}
    missing = []
    for path in filter(is_gzip, paths):
        found = [copy for copy in _places(path) if os.path.isfile(copy)]
        copies[path] = found[0] if found else None
        missing += [] if found else [path]
    if missing:
        size = sum(map(os.path.getsize, missing))
        logger.info(f"uncompressing {len(missing)} gzip files of {size / _GB:.2f} GB; the copies stay for later runs")
    for wait in (False, True):
        for path in missing:
            copies[path] = copies[path] or _make_copy(path, wait)
    names = [path if copies[path] == path else f"{path} (uncompressed as {copies[path]})" for path in paths]
    return [copies[path] for path in paths], names


def _places(path: str) -> list[str]:
    """Returns where the copy of a file may be, the preferred place first."""
    status = os.stat(path)
    folder, name = os.path.split(os.path.realpath(path))
    copy = f".{name}.{status.st_size:x}-{status.st_mtime_ns:x}.uncompressed"
    digest = hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:16]
    return [os.path.join(folder, copy), os.path.join(_temporary_folder(), digest, copy)]


def _temporary_folder() -> str:
    return os.path.join(tempfile.gettempdir(), f"tftrain-{os.getuid()}")


def _make_copy(path: str, wait: bool) -> str | None:
    """Writes the copy of a file in the first folder that takes it.

    Args:
        path: the gzip file.
        wait: whether to wait for another process that writes the same copy. If not, the result is then None.
    """
    failures = []
    for copy in _places(path):
        try:
            with _lock(copy, wait) as locked:
                if not locked:
                    return None
                if not os.path.isfile(copy):
                    _write_copy(path, copy)
                return copy
        except OSError as error:
            failures.append(f"{os.path.dirname(copy)} ({error.strerror})")
    raise DataError(
        f"{path}: gzip TFRecords are read from an uncompressed copy, which no folder took: {', '.join(failures)}; free "
        "space there, set TMPDIR to a folder that has some, or uncompress the files yourself (gunzip)"
    )


@contextlib.contextmanager
def _lock(copy: str, wait: bool) -> Iterator[bool]:
    """Holds the lock of a copy. Yields False if another process has it and `wait` is False."""
    folder = os.path.dirname(copy)
    if folder.startswith(_temporary_folder()):
        _make_private(folder)
    descriptor = os.open(copy + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    locked = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            locked = False
        except OSError:
            # The file system has no locks: the rename alone keeps copies whole.
            pass
        yield locked
    finally:
        if locked:
            # A process that waits for this lock gets it all the same, and looks for the copy first.
            with contextlib.suppress(OSError):
                os.unlink(copy + ".lock")
        os.close(descriptor)


def _make_private(folder: str) -> None:
    """Makes a folder below the temporary folder that no other user can write."""
    os.makedirs(_temporary_folder(), 0o700, exist_ok=True)
    status = os.lstat(_temporary_folder())
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(errno.EPERM, "another user can write this folder", _temporary_folder())
    os.makedirs(folder, 0o700, exist_ok=True)


def _write_copy(path: str, copy: str) -> None:
    """Writes the copy of a file and its index, and removes the copies of earlier versions of the file.

    Raises:
        DataError: the file is damaged or holds no TFRecords.
        OSError: the folder cannot be written or has no space.
    """
    folder = os.path.dirname(copy)
    if shutil.disk_usage(folder).free < _LEAST_RATIO * os.path.getsize(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
    descriptor, temporary = tempfile.mkstemp(prefix=".unfinished-", dir=folder)
    try:
        offsets = array.array("Q", [0])
        with os.fdopen(descriptor, "wb", 1 << 20) as file:
            for record in _stream(path):
                offsets.append(offsets[-1] + sum(map(file.write, record)))
        if len(offsets) == 1:
            raise DataError(f"{path}: byte 0: the file is empty; copy it again, or leave it out")
        write_index(copy, np.array(offsets, np.uint64))
        os.replace(temporary, copy)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    earlier = glob.escape(os.path.join(folder, f".{os.path.basename(os.path.realpath(path))}.")) + "*.uncompressed"
    for old in glob.glob(earlier):
        if old != copy:
            for suffix in ("", ".index"):
                with contextlib.suppress(OSError):
                    os.unlink(old + suffix)


def _stream(path: str) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yields header, payload and footer of each record of a gzip file. Payloads are checked when they are read."""
    offset = 0
    place = f"{path} (uncompressed)"
    try:
        with open(path, "rb") as compressed, gzip.GzipFile(fileobj=compressed) as file:
            while header := file.read(HEADER_BYTES):
                length = -1
                if len(header) == HEADER_BYTES:
                    length = check_size(checked_length(header, place, offset), place, offset)
                    payload, footer = file.read(length), file.read(FOOTER_BYTES)
                if length < 0 or len(payload) + len(footer) != length + FOOTER_BYTES:
                    raise DataError(f"{place}: byte {offset}: the record is cut short; copy or prepare it again")
                yield header, payload, footer
                offset += HEADER_BYTES + length + FOOTER_BYTES
    except EOFError as error:
        raise DataError(f"{place}: byte {offset}: the gzip file is cut short; copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{place}: byte {offset}: a damaged gzip file ({error}); copy it again") from error
    except OSError as error:
        raise DataError(f"{place}: byte {offset}: {error.strerror}") from error
