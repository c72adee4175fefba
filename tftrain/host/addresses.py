"""Files at addresses such as s3://bucket/text.jsonl: lists them, and reads them with retries, through fsspec.

An address begins with a protocol and "://". Credentials and endpoints are those that fsspec's file systems find: in
their environment variables and in fsspec's configuration files.
"""

import errno
import io
import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

# Seconds before each retry of a request.
_WAITS = (0.5, 1, 2, 4, 8)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Every request would end with them.
_PERMANENT = (FileNotFoundError, ImportError, NotImplementedError, PermissionError, ValueError)
# HTTP codes of 400 to 499 are permanent, except "request timeout" and "too many requests".
_TEMPORARY_CODES = (408, 429)
_PART_BYTES = 1 << 20


def is_address(name: str) -> bool:
    """Whether a name is an address, not a path."""
    return _ADDRESS.match(name) is not None


def list_files(address: str) -> list[str]:
    """Returns the addresses of a file, of all files below a folder, or of those that match a glob; sorted.

    A folder of https:// ends with "/". An address of file:// gives local paths.

    Raises:
        OSError: the address can't be listed, for instance because the package for its protocol is missing.
    """
    return sorted(_retried(address, lambda: _list_files(address)))


def size(name: str) -> int:
    """Returns the bytes of a file at an address or a path, 0 if its server does not say; raises OSError."""
    if not is_address(name):
        return os.path.getsize(name)
    return _retried(name, lambda: _system(name)[0].size(name) or 0)


def open_file(name: str) -> io.BufferedReader:
    """Opens a file at an address or a path to read its bytes; raises OSError if that fails, or a later read."""
    return io.BufferedReader(_Remote(name), _PART_BYTES) if is_address(name) else open(name, "rb")


def _system(address: str) -> tuple[Any, str]:
    """Returns fsspec's file system of an address, and the path in it."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    system.retries = 1  # Those of s3fs and gcsfs would multiply with the ones here.
    return system, path


def _list_files(address: str) -> list[str]:
    system, path = _system(address)
    protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    try:
        is_folder = path.endswith("/") if "http" in protocols else system.info(path)["type"] == "directory"
        found = system.find(path) if is_folder else [system.info(path)["name"]]
    except FileNotFoundError as error:
        if not _is_missing(_cause(error)):
            raise
        is_folder, found = False, [match for match in system.glob(path) if system.isfile(match)]
    if is_folder:
        found = [name for name in found if "/." not in name.removeprefix(path.rstrip("/"))]
    return found if "file" in protocols else [system.unstrip_protocol(name) for name in found]


class _Remote(io.RawIOBase):
    """A file at an address. If a read fails, the file is opened again and the read is repeated."""

    def __init__(self, address: str):
        self._address = address
        self._file, self._position, self._options = None, 0, {}
        _retried(address, self._open)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file_size is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file_size}[whence]
        return self._position

    def readinto(self, buffer) -> int:
        block = _retried(self._address, lambda: self._read(len(buffer)))
        buffer[: len(block)] = block
        self._position += len(block)
        return len(block)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    def _open(self) -> None:
        system, path = _system(self._address)
        if self._file is not None:
            self._file.close()
        self._file = system.open(path, "rb", **self._options)
        self._file_size = self._file.size

    def _read(self, count: int) -> bytes:
        try:
            # A file without ranges is read forwards only.
            if self._file is None or (self._options and self._file.tell() > self._position):
                self._open()
            while self._options and (missing := self._position - self._file.tell()):
                if not self._file.read(min(missing, _PART_BYTES)):
                    raise OSError(errno.EIO, f"it ends at byte {self._file.tell()}")
            if not self._options:
                self._file.seek(self._position)
            block = self._file.read(count)
            if not block and self._position < (self._file_size or 0):
                raise OSError(errno.EIO, f"it ends at byte {self._position}, not {self._file_size}")
            return block
        except BaseException as error:
            self._file, file = None, self._file
            if file is not None:
                file.close()
            if not (isinstance(error, ValueError) and "range requests" in str(error) and not self._options):
                raise
        # A server of HTTP that gives no ranges of a file: it is read from the beginning.
        self._options = {"block_size": 0}
        return self._read(count)


def _retried(address: str, action: Callable[[], Result]) -> Result:
    """Returns what an action returns, after retries; raises OSError with the reason for its last failure."""
    for number, wait in enumerate((*_WAITS, None), 1):
        try:
            return action()
        except Exception as raised:
            error = _cause(raised)
            permanent = _is_permanent(error)
            if permanent or wait is None:
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                reason = "no such file" if _is_missing(error) else reason
                tries = "" if permanent else f" (tried {number} times)"
                raise OSError(errno.EIO, f"{reason}{tries}", address) from error
        time.sleep(wait)
    raise AssertionError("the last wait is None")


def _cause(error: BaseException) -> BaseException:
    """Returns why a request failed. fsspec's HTTP says that a file is missing, whatever the cause is."""
    return error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error


def _is_missing(error: BaseException) -> bool:
    return isinstance(error, FileNotFoundError) or getattr(error, "status", None) == 404


def _is_permanent(error: BaseException) -> bool:
    """Whether a request that fails so would fail again."""
    code = getattr(error, "status", None)
    if isinstance(code, int):
        return 400 <= code < 500 and code not in _TEMPORARY_CODES
    return isinstance(error, _PERMANENT)
