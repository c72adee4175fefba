"""Files at addresses such as s3://bucket/text.jsonl: lists them, and reads them with retries, through fsspec.

An address begins with a protocol and "://". Credentials and endpoints are those that fsspec's file systems find: in
their environment variables and in fsspec's configuration files.
"""

import errno
import io
import os
import re
import tempfile
import time
from collections.abc import Callable
from glob import has_magic
from typing import Any, BinaryIO, TypeVar

Result = TypeVar("Result")

# Seconds before each retry of a request.
_WAITS = (0.5, 1, 2, 4, 8)
# Every request would end with them.
_PERMANENT = (FileNotFoundError, ImportError, NotImplementedError, PermissionError, ValueError)
# HTTP codes of 400 to 499 are permanent, except "request timeout" and "too many requests".
_TEMPORARY_CODES = (408, 429)
_REQUEST_BYTES = 4 << 20


def is_address(name: str) -> bool:
    """Whether a name is an address, not a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name) is not None


def list_files(address: str) -> list[str]:
    """Returns the addresses of a file, of all files below a folder, or of those that match a glob; sorted.

    A folder of https:// ends with "/". An address of file:// gives local paths.

    Raises:
        OSError: the address can't be listed, for instance because the package for its protocol is missing.
    """
    return sorted(_retried(address, _list_files))


def size(name: str) -> int:
    """Returns the bytes of a file at an address or a path, 0 if its server does not say; raises OSError."""
    return _retried(name, _status)[2]["size"] or 0 if is_address(name) else os.path.getsize(name)


def open_file(name: str) -> BinaryIO:
    """Opens a file at an address or a path to read its bytes; raises OSError if that fails, or a later read."""
    if not is_address(name):
        return open(name, "rb")
    system, path, info = _retried(name, _status)
    if info["size"] is not None and (info.get("partial") or "http" not in system.protocol):
        return io.BufferedReader(_Remote(name, info["size"]), _REQUEST_BYTES)
    # A server of HTTP that does not offer ranges of a file.
    copy = tempfile.NamedTemporaryFile()  # noqa: SIM115
    _retried(name, lambda _: system.get_file(path, copy.name))
    return copy


class _Remote(io.RawIOBase):
    """A file of `size` bytes at an address, of which each read is a request."""

    def __init__(self, address: str, size: int):
        self._address, self._size, self._position = address, size, 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer) -> int:
        count = max(0, min(len(buffer), self._size - self._position))
        if count:
            buffer[:count] = _retried(self._address, lambda address: self._read(address, count))
            self._position += count
        return count

    def _read(self, address: str, count: int) -> bytes:
        system, path = _system(address)
        block = system.cat_file(path, start=self._position, end=self._position + count)
        if len(block) != count:
            raise OSError(errno.EIO, f"{len(block)} bytes at byte {self._position}; expected {count}")
        return block


def _system(address: str) -> tuple[Any, str]:
    """Returns fsspec's file system of an address, and the path in it."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    system.retries = 1  # Those of s3fs and gcsfs would multiply with the ones here.
    return system, path


def _status(address: str) -> tuple[Any, str, dict[str, Any]]:
    system, path = _system(address)
    return system, path, system.info(path)


def _list_files(address: str) -> list[str]:
    system, path = _system(address)
    if has_magic(path):
        names = [name for name, info in system.glob(path, detail=True).items() if info["type"] == "file"]
    elif path.endswith("/") if "http" in system.protocol else system.info(path)["type"] == "directory":
        names = [name for name in system.find(path) if "/." not in name.removeprefix(path.rstrip("/"))]
    else:
        names = [system.info(path)["name"]]
    return names if "file" in system.protocol else [system.unstrip_protocol(name) for name in names]


def _retried(address: str, action: Callable[[str], Result]) -> Result:
    """Returns what an action on an address returns, after retries; raises OSError with the last one's reason."""
    for number, wait in enumerate((*_WAITS, None), 1):
        try:
            return action(address)
        except Exception as raised:
            # fsspec's HTTP says that a file is missing, whatever the cause is.
            error = raised.__cause__ if isinstance(raised, FileNotFoundError) and raised.__cause__ else raised
            code = getattr(error, "status", None)
            permanent = isinstance(error, _PERMANENT)
            if isinstance(code, int):
                permanent = 400 <= code < 500 and code not in _TEMPORARY_CODES
            if permanent or wait is None:
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                reason = "no such file" if code == 404 or isinstance(error, FileNotFoundError) else reason
                tries = "" if permanent else f" (tried {number} times)"
                raise OSError(errno.EIO, f"{reason}{tries}", address) from error
        time.sleep(wait)
    raise AssertionError("the last wait is None")
