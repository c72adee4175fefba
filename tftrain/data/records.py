"""Random access to TFRecord files.

An index has the byte offset of every record. So the training order can be a pure function of the sample number, and
the position in the training data is one integer. A TFRecord consists of a little-endian uint64 length, the masked
CRC-32C of the length, the payload and the masked CRC-32C of the payload. Every read verifies both checksums.
"""

import array
import contextlib
import functools
import glob
import itertools
import os
import stat
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import numpy as np

from tftrain.data import mirror
from tftrain.data.record_index import FRAME_BYTES, read_index, write_index
from tftrain.files import addresses
from tftrain.files.errors import DataError
from tftrain.files.reading import POINTER, POINTER_BYTES, is_pointer

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_GZIP_MAGIC = b"\x1f\x8b"
_OPEN_FILES = 128
_AT_ONCE = 256  # records that are fetched before the first of them is read
# The largest valid example (2^16 tokens in the standard format) needs a third of this.
LONGEST_RECORD = 16 << 20


def masked_crc(data: bytes) -> int:
    """Returns TFRecord's checksum of `data`: its CRC-32C, rotated right by 15 bits, plus a constant."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Returns `payload` as one TFRecord."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, _FOOTER.pack(masked_crc(length)), payload, _FOOTER.pack(masked_crc(payload))))


def write_records(path: str, payloads: Iterable[bytes]) -> None:
    """Writes a TFRecord file and its index."""
    offsets = [0]
    with open(path, "wb") as file:
        for payload in payloads:
            record = frame(payload)
            file.write(record)
            offsets.append(offsets[-1] + len(record))
    write_index(path, np.array(offsets, np.uint64))


def match_files(pattern: str, flag: str) -> list[str]:
    """Returns the sorted paths that the glob of a flag matches, without index files; raises DataError if none does."""
    paths = sorted(
        path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path) and not path.endswith(".index")
    )
    if not paths:
        raise DataError(f"--{flag}={pattern}: no file matches; expected a glob of local files (quote it in a shell)")
    return paths


def load_offsets(path: str) -> np.ndarray:
    """Returns the byte offset of each record of a TFRecord file, and the size of the file: uint64 [records + 1].

    The offsets come from the index file `path + ".index"`. If the index is missing or does not match the file, the file
    is scanned and the index is written, if the folder is writable.

    Raises:
        DataError: the file is missing, empty, compressed, truncated or damaged.
    """
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a TFRecord file that can be read") from error
    if size == 0:
        raise DataError(f"{path}: byte 0: the file is empty; copy it again, or leave it out")
    offsets = read_index(path, size)
    if offsets is None:
        offsets = scan(path)
        with contextlib.suppress(OSError):
            write_index(path, offsets)
    return offsets


def scan(path: str) -> np.ndarray:
    """Reads all record headers of a file. Returns the offsets and raises errors as `load_offsets`."""
    offsets, file = array.array("Q", [0]), _OpenFile(path)
    while offsets[-1] < file.size:
        begin = offsets[-1]
        header = file.pread(min(_HEADER.size, file.size - begin), begin)
        offsets.append(begin + FRAME_BYTES + _payload_length(file, begin, header))
    return np.array(offsets, np.uint64)


@functools.cache
def _fetchers() -> ThreadPoolExecutor:
    """Returns the threads of this process that fetch records, however many sets it has."""
    return ThreadPoolExecutor(addresses.REQUESTS, "fetch")


class RecordSet:
    """The records of several files, numbered consecutively in file order. Reads are thread-safe.

    `counts` are the numbers of records of the files. Their indexes are loaded at once, which raises DataError as
    `load_offsets`. If `is_remote`, some files are shards of a `mirror`; `fetch` then reads many records at once.
    """

    def __init__(self, paths: Sequence[str]):
        self.paths = list(paths)
        self.is_remote = any(map(mirror.address_of, self.paths))
        self._offsets = [load_offsets(path) for path in self.paths]
        self._pool = _fetchers() if self.is_remote else None
        self._fetched: dict[int, bytes] = {}  # Records that no file on this host has, until they are read.
        self.counts = [len(offsets) - 1 for offsets in self._offsets]
        self._ends = list(itertools.accumulate(self.counts))
        # A file that is not held any more closes when no thread reads it.
        self._open = functools.lru_cache(_OPEN_FILES)(_OpenFile)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def place(self, number: int) -> str:
        """Returns "path: byte offset" of a record, for error messages."""
        path, offset, _ = self._find(number)
        return f"{self._open(path).path if self.is_remote else path}: byte {offset}"

    def read_all(self, numbers: Sequence[int]) -> Iterator[tuple[str, bytes]]:
        """Yields place and payload of records; see `place` and `read`."""
        for begin in range(0, len(numbers), _AT_ONCE):
            some = numbers[begin : begin + _AT_ONCE]
            self.fetch(some)
            yield from ((self.place(number), self.read(number)) for number in some)

    def fetch(self, numbers: Iterable[int]) -> None:
        """Lets `read` of these records wait for no server; raises DataError as `read`."""
        if self._pool:
            list(self._pool.map(self._fetch, numbers))

    def _fetch(self, number: int) -> None:
        path, offset, size = self._find(number)
        if number not in self._fetched and (content := self._open(path).fetch(_most(size), offset)):
            self._fetched[number] = content

    def read(self, number: int) -> bytes:
        """Returns the payload of a record; raises DataError if the file is missing, truncated or damaged."""
        path, offset, size = self._find(number)
        file = self._open(path)
        if offset + size > file.size:
            raise _cut_short(file, offset, size)
        record = self._fetched.pop(number, None) or file.pread(_most(size), offset)
        try:
            return _payload(file, offset, size, record)
        except DataError:
            if not file.discard(_most(size), offset):
                raise
        return _payload(file, offset, size, file.pread(_most(size), offset))

    def _find(self, number: int) -> tuple[str, int, int]:
        """Returns the path of the shard, the byte offset and the framed size of a record."""
        shard = bisect_right(self._ends, number)
        offsets, local = self._offsets[shard], number - (self._ends[shard] - self.counts[shard])
        return self.paths[shard], int(offsets[local]), int(offsets[local + 1]) - int(offsets[local])


class _OpenFile:
    """A file descriptor that closes with its last reference; `path` is the address of a shard of a mirror."""

    def __init__(self, path: str):
        self.path, self._descriptor, self._blocks = path, -1, None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise DataError(f"{self.path}: {error.strerror}; expected a TFRecord file that can be read") from error
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{self.path}: not a regular file; expected a TFRecord file")
        if is_pointer(os.pread(self._descriptor, POINTER_BYTES, 0)):
            raise DataError(f"{self.path}: {POINTER}")
        self.size = status.st_size
        if address := mirror.address_of(path):
            self._blocks, self.path = mirror.Blocks(path, address, self.size), address

    def __del__(self):
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def pread(self, size: int, offset: int) -> bytes:
        """Reads `size` bytes at the offset of a record. The caller has checked that the range is inside the file."""
        data = self.fetch(size, offset)
        try:
            data = os.pread(self._descriptor, size, offset) if data is None else data
        except OSError as error:
            raise DataError(f"{self.path}: byte {offset}: {error.strerror}") from error
        if len(data) != size:
            self.size = os.fstat(self._descriptor).st_size
            raise _cut_short(self, offset, size)
        return data

    def fetch(self, size: int, offset: int) -> bytes | None:
        """Fetches a range of a shard of a mirror; returns it if the shard has no blocks. Raises DataError."""
        try:
            return self._blocks and self._blocks.fetch(offset, size)
        except OSError as error:
            raise DataError(f"{self.path}: byte {offset}: {error.strerror}") from error

    def discard(self, size: int, offset: int) -> bool:
        """Lets a range be fetched again; returns False for a file that is not of a mirror."""
        if self._blocks:
            self._blocks.discard(offset, size)
        return self._blocks is not None


def _most(size: int) -> int:
    """Returns the bytes to read of a record: those of the header, which shows it, if no example has so many."""
    return size if size <= LONGEST_RECORD + FRAME_BYTES else _HEADER.size


def _payload(file: _OpenFile, offset: int, size: int, record: bytes) -> bytes:
    """Returns the payload of a record of `size` bytes by the index; raises DataError if it is damaged."""
    if _payload_length(file, offset, record) != size - FRAME_BYTES:
        fault = f"the record has another length than {file.path}.index says"
        raise DataError(f"{file.path}: byte {offset}: {fault}; remove that index: it is written again")
    payload, (crc,) = record[_HEADER.size : -_FOOTER.size], _FOOTER.unpack(record[-_FOOTER.size :])
    if masked_crc(payload) != crc:
        raise DataError(
            f"{file.path}: byte {offset}: the record's checksum does not fit its {len(payload)} bytes: "
            "the file is damaged; copy or prepare it again"
        )
    return payload


def _payload_length(file: _OpenFile, offset: int, record: bytes) -> int:
    """Returns the payload length in a record's header, of which `record` are the first bytes, and validates it.

    Raises:
        DataError: the checksum does not match, the record is too long, or it ends after the end of the file.
    """
    if file.size - offset < FRAME_BYTES:
        raise _cut_short(file, offset, FRAME_BYTES)
    header = record[: _HEADER.size]
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        if offset == 0 and header.startswith(_GZIP_MAGIC):
            raise DataError(f"{file.path}: byte 0: this is gzip, not plain TFRecord; uncompress it first (gunzip)")
        raise DataError(
            f"{file.path}: byte {offset}: the checksum of the record's length does not fit: not a TFRecord "
            "file, or a damaged one; copy or prepare it again"
        )
    if length > file.size - offset - FRAME_BYTES:
        raise _cut_short(file, offset, length + FRAME_BYTES)
    if length > LONGEST_RECORD:
        raise DataError(
            f"{file.path}: byte {offset}: the record has {length} bytes; expected an example of at most "
            f"{LONGEST_RECORD}; prepare the data again"
        )
    return length


def _cut_short(file: _OpenFile, offset: int, size: int) -> DataError:
    return DataError(
        f"{file.path}: byte {offset}: the record is cut short: it has {size} bytes or more and the file ends "
        f"{file.size - offset} bytes after its beginning; copy or prepare it again"
    )
