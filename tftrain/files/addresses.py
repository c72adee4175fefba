"""Files at addresses such as s3://bucket/text.jsonl: lists, reads and writes them with retries, through fsspec.

An address begins with a protocol and "://". fsspec's file systems find credentials and endpoints in their environment
variables and in fsspec's configuration files.
"""

import contextlib
import errno
import functools
import io
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from glob import has_magic
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import xxhash

from tftrain.files import limits, names
from tftrain.files.reading import read_at_most
from tftrain.host.text import shown

Result = TypeVar("Result")

# Seconds before each retry of a request.
_WAITS = (0.5, 1, 2, 4, 8)
# Every request would end with them.
_PERMANENT = (FileNotFoundError, ImportError, NotImplementedError, PermissionError, ValueError)
# HTTP codes of 400 to 499 are permanent, except "request timeout" and "too many requests".
_TEMPORARY_CODES = (408, 429)
_REQUEST_BYTES = 4 << 20
REQUESTS = 32  # at once
# What changes with a file, as far as a file system says it.
_VERSION = ("size", "ETag", "LastModified", "mtime", "md5Hash", "content_md5", "blob_id")


def _retried(action: Callable[..., Result]) -> Callable[..., Result]:
    """Lets what is done at an address be tried again; the function raises OSError with the last error's reason."""

    @functools.wraps(action)
    def call(address: str, *others: Any) -> Result:
        for number, wait in enumerate((*_WAITS, None), 1):
            try:
                return action(address, *others)
            except Exception as raised:
                # fsspec's HTTP says that a file is missing, whatever the cause is.
                error = raised.__cause__ if isinstance(raised, FileNotFoundError) and raised.__cause__ else raised
                code, answer = getattr(error, "status", None), getattr(error, "response", None)
                if isinstance(answer, dict):  # S3's
                    code = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
                permanent = isinstance(error, _PERMANENT)
                if isinstance(code, int):
                    permanent = 400 <= code < 500 and code not in _TEMPORARY_CODES
                if permanent or wait is None:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    reason = "no such file" if code == 404 or isinstance(error, FileNotFoundError) else reason
                    tries = "" if permanent else f" (tried {number} times)"
                    raise OSError(errno.EIO, shown(f"{reason}{tries}"), shown(address)) from error
            time.sleep(wait)
        raise AssertionError("the last wait is None")

    return call


class Cache(NamedTuple):
    """Where copies of what is at addresses are, and the most bytes of prepared data to which more is added."""

    given_folder: str | None = None
    bytes: int = 0

    def path(self, *names: str) -> Path:
        """Returns a path in the folder, by default tftrain in $XDG_CACHE_HOME or ~/.cache."""
        default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tftrain")
        return Path(self.given_folder or default, *names)


def is_address(name: str | None) -> bool:
    """Whether a name is an address, not a path or nothing."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name or "") is not None


def absolute(name: str) -> str:
    """Returns a path that holds in any working folder; an address as it is."""
    return name if is_address(name) else os.path.abspath(name)


def file_name(name: str) -> str:
    """Returns the name whose ending says what a file is: zip://a.txt of zip://a.txt::s3://b/c.zip; no query of HTTP."""
    name = name.partition("::")[0] if is_address(name) else name
    return name.partition("?")[0] if re.match("https?://", name) else name


def join(address: str, *names: str) -> str:
    """Returns the address of a file in a folder at an address."""
    place, *inside_of = address.split("::", 1)
    root = place if place.endswith("://") else place.rstrip("/") + "/"
    return "::".join((root + "/".join(names), *inside_of))


def local_name(address: str, *contents: str | bytes) -> str:
    """Returns the name of a local folder for what an address has: equal for equal addresses and contents."""
    digest = xxhash.xxh3_64_hexdigest("\n".join(map(str, (address.rstrip("/"), *contents))).encode())
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', shown(address)).strip('_')[-80:]}_{digest}"


@_retried
def list_files(address: str) -> list[str]:
    """Returns the addresses of a file, of all files below a folder, or of what matches a glob; sorted.

    A name that exists is not read as a glob. A glob finds hidden files, whose names begin with a dot, only if it has
    such a name, and a folder never. A folder of https:// ends with "/". An address of file:// gives local paths. Raises
    an OSError if it can't be listed, for instance because the package for its protocol is missing.
    """
    system, path = _system(address)
    root, pattern = path.rstrip("/"), ""
    if has_magic(file_name(address)) and not system.exists(path):
        root = path[: re.search(r"[*?[]", path).start()].rpartition("/")[0]
        found, pattern = system.glob(path, detail=True).values(), path.removeprefix(root)
    else:
        is_folder = "http" in system.protocol and path.endswith("/")
        found = [{"name": path, "type": "directory"} if is_folder else system.info(path)]
    below = (system.find(each["name"]) if each["type"] == "directory" else [each["name"]] for each in found)
    hidden = r"/$" if "/." in pattern else r"/(\.|$)"
    names = [name for name in {*chain(*below)} if not re.search(hidden, name.removeprefix(root))]
    if "::" in address:
        names = [join(f"{address.partition('://')[0]}://::{address.partition('::')[2]}", name) for name in names]
    elif "file" not in system.protocol:
        names = [system.unstrip_protocol(name) for name in names]
    return sorted(names)


def size(name: str) -> int:
    """Returns the bytes of a file at an address or a path, 0 if its server does not say; raises OSError."""
    return _status(name)[2]["size"] or 0 if is_address(name) else os.path.getsize(name)


@_retried
def listing(address: str) -> dict[str, str]:
    """Returns the files below a folder, maybe none, and words for each that change with its content; raises OSError."""
    system, path = _system(address)
    system.invalidate_cache()
    root, files = path.rstrip("/") + "/", sorted(limits.files_below(system, path).items())
    versions = ((name, str([str(info[key]) for key in _VERSION if key in info])) for name, info in files)
    # An empty object whose name ends with "/" only marks a folder, in stores that have none.
    below = ((name, words) for name, words in versions if name.startswith(root) and name[-1] != "/")
    return {names.check(name[len(root) :]): words for name, words in below}


@_retried
def read(address: str, start: int, stop: int) -> bytes:
    """Returns the bytes [start, stop) of a file at an address; raises OSError."""
    system, path = _system(address)
    block = system.cat_file(path, start=start, end=stop)
    if len(block) != stop - start:
        raise OSError(errno.EIO, f"{len(block)} bytes at byte {start}; expected {stop - start}")
    return block


def read_small(address: str, limit: int) -> bytes:
    """Returns the content of a file at an address; raises OSError if it can't, or has more than `limit` bytes."""
    with open_file(address) as file:
        content = read_at_most(file, limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", address)
    return content


def download(address: str, path: str | os.PathLike) -> None:
    """Copies a file to a path, which has the whole file or does not exist; raises OSError."""
    partial = f"{path}.download"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _get(address, partial)
    os.replace(partial, path)


@_retried
def _get(address: str, path: str) -> None:
    system, name = _system(address)
    expected = system.info(name)["size"]
    limits.get_file(system, name, path, expected)
    if expected not in (None, size := os.path.getsize(path)):
        raise OSError(errno.EIO, f"{size} bytes arrived; expected {expected}")


def download_all(address: str, files: Iterable[str], folder: Path) -> None:
    """Copies files below an address into a folder, under the same names; raises OSError, also for a name or a link."""
    try:
        paths = {file: names.inside(folder, file) for file in files}
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), address) from error
    in_parallel(lambda file: download(join(address, file), paths[file]), paths)


@_retried
def upload(address: str, path: str | os.PathLike) -> None:
    """Copies a local file to an address, and checks its size there; raises an OSError if that fails.

    Object stores show a file only when it is complete.
    """
    (system, name), size = _system(address), os.path.getsize(path)
    system.put_file(str(path), name)
    system.invalidate_cache()
    if (arrived := system.info(name)["size"]) != size:
        raise OSError(errno.EIO, f"{arrived} bytes arrived; expected {size}")


@_retried
def copy(address: str, other: str) -> None:
    """Copies a file to another address of the same file system; raises OSError."""
    system, path = _system(address)
    system.cp_file(path, _system(other)[1])


@_retried
def remove(address: str) -> None:
    """Removes a file that may be gone already; raises OSError."""
    system, path = _system(address)
    with contextlib.suppress(FileNotFoundError):
        system.rm_file(path)


def in_parallel(action: Callable[[Any], Result], items: Iterable[Any]) -> list[Result]:
    """Returns what an action returns for each item; many requests travel at once."""
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(action, items))


def open_file(name: str) -> BinaryIO:
    """Opens a file at an address or a path to read its bytes; raises OSError if that fails, or a later read."""
    if not is_address(name):
        return open(name, "rb")
    system, path, info = _status(name)
    if info["size"] is not None and (info.get("partial") or "http" not in system.protocol):
        return io.BufferedReader(_Remote(name, info["size"]), _REQUEST_BYTES)
    # A server of HTTP that does not offer ranges of a file.
    with tempfile.TemporaryDirectory() as folder:
        _retried(lambda _: limits.get_file(system, path, f"{folder}/copy", info["size"]))(name)
        return open(f"{folder}/copy", "rb")


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

    def readinto(self, buffer: memoryview) -> int:
        count = max(0, min(len(buffer), self._size - self._position))
        if count:
            buffer[:count] = read(self._address, self._position, self._position + count)
            self._position += count
        return count


def _system(address: str) -> tuple[Any, str]:
    """Returns fsspec's file system of an address, and the path in it; raises what `names.check_address` does."""
    names.check_address(address)
    protocol, _, place = address.partition("://")
    is_chain = "::" in address  # several file systems, such as zip://a.txt::s3://bucket/b.zip
    system, path = _file_system(address if is_chain else f"{protocol}://{place.partition('/')[0]}", os.getpid())
    return system, path if is_chain else system._strip_protocol(address)


@functools.lru_cache(maxsize=256)
def _file_system(root: str, _pid: int) -> tuple[Any, str]:
    """Returns fsspec's file system of a server or a bucket; threads share it, where fsspec would make one for each."""
    import fsspec

    system, path = fsspec.core.url_to_fs(root)
    system.retries = 1  # Those of s3fs and gcsfs would multiply with the ones here.
    system.auto_mkdir = True  # file:// needs it; object stores need no folder.
    if hasattr(system, "config_kwargs"):  # s3fs: boto's default is 10 requests at once.
        system.config_kwargs.setdefault("max_pool_connections", 2 * REQUESTS)
    return system, path


@_retried
def _status(address: str) -> tuple[Any, str, dict[str, Any]]:
    system, path = _system(address)
    return system, path, system.info(path)
