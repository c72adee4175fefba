"""TFRecord files read by random access.

With the offset of every record known, the training order can be a pure function of the sample's number, and the
position of the training data is one integer. The framing is TFRecord's: a little-endian uint64 length, the masked
CRC-32C of the length, the payload, the masked CRC-32C of the payload. Both checksums are verified on every read.
"""

import array
import contextlib
import glob
import io
import itertools
import os
import stat
import struct
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock

import google_crc32c
import numpy as np

from tftrain.data.errors import DataError

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_FRAME = _HEADER.size + _FOOTER.size
_OPEN_FILES = 128
_INDEX_IN_MEMORY = 1 << 20
# The longest example, 2^16 tokens in the standard format, has a third of it.
LONGEST_RECORD = 16 << 20


def masked_crc(data: bytes) -> int:
    """Returns TFRecord's checksum of `data`: its CRC-32C, rotated right by 15 bits, plus a constant."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Returns `payload` as one TFRecord."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, _FOOTER.pack(masked_crc(length)), payload, _FOOTER.pack(masked_crc(payload))))


def write_records(path: str, payloads: Iterable[bytes]) -> int:
    """Writes a TFRecord file and its index; returns the number of records."""
    offsets = [0]
    with open(path, "wb") as file:
        for payload in payloads:
            record = frame(payload)
            file.write(record)
            offsets.append(offsets[-1] + len(record))
    _write_index(path, np.array(offsets, np.uint64))
    return len(offsets) - 1


def match_files(pattern: str, flag: str) -> list[str]:
    """Returns the files that a glob matches, sorted; DataError if it matches none."""
    found = sorted(
        path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path) and not path.endswith(".index")
    )
    if not found:
        raise DataError(f"--{flag}={pattern}: no file matches; expected a glob of existing files (quote it in a shell)")
    return found


def load_offsets(path: str) -> np.ndarray:
    """Returns where each record of a file begins, from the index beside it or else from a scan of the file.

    Args:
        path: a TFRecord file. `path + ".index"` is written if it is missing or does not fit, where the folder allows.

    Returns:
        uint64 [records + 1] byte offsets, the last of which is the file's size.

    Raises:
        DataError: the file is missing, empty, compressed, cut short or damaged.
    """
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a TFRecord file that can be read") from error
    if size == 0:
        raise DataError(f"{path}: byte 0: the file is empty; copy it again, or leave it out")
    offsets = _read_index(path, size)
    if offsets is None:
        offsets = scan(path)
        with contextlib.suppress(OSError):
            _write_index(path, offsets)
    return offsets


def scan(path: str) -> np.ndarray:
    """Returns the offsets of a file's records, as `load_offsets`, by walking over its headers."""
    offsets = array.array("Q", [0])
    with _OpenFile(path) as file:
        while offsets[-1] < file.size:
            begin = offsets[-1]
            offsets.append(begin + _FRAME + _payload_length(file, begin))
    return np.array(offsets, np.uint64)


class RecordSet:
    """Records of several files, numbered through in the order of the files. Safe to read from several threads."""

    def __init__(self, paths: Sequence[str]):
        """Loads the files' indices; raises DataError as `load_offsets`."""
        self.paths = list(paths)
        self._offsets = [load_offsets(path) for path in self.paths]
        self._ends = list(itertools.accumulate(len(offsets) - 1 for offsets in self._offsets))
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def counts(self) -> list[int]:
        """Records of each file."""
        return [len(offsets) - 1 for offsets in self._offsets]

    def place(self, number: int) -> str:
        """Returns "path: byte offset" of a record, for messages."""
        shard, offset, _ = self._find(number)
        return f"{self.paths[shard]}: byte {offset}"

    def read(self, number: int) -> bytes:
        """Returns the payload of a record.

        Raises:
            DataError: the file is gone, cut short, or a checksum does not fit.
        """
        shard, offset, size = self._find(number)
        file = self._file(shard)
        if offset + size > file.size:
            raise _cut_short(file, offset, size)
        # Before the record is read as long as the index says.
        if _payload_length(file, offset) != size - _FRAME:
            raise DataError(
                f"{file.path}: byte {offset}: the record has another length than {file.path}.index says; "
                "remove that index, it is made anew"
            )
        record = file.pread(size, offset)
        payload, (crc,) = record[_HEADER.size : -_FOOTER.size], _FOOTER.unpack(record[-_FOOTER.size :])
        if masked_crc(payload) != crc:
            raise DataError(
                f"{file.path}: byte {offset}: the record's checksum does not fit its {len(payload)} bytes: "
                "the file is damaged; copy or prepare it again"
            )
        return payload

    def _find(self, number: int) -> tuple[int, int, int]:
        """Returns a record's shard, byte offset and size in the file."""
        if not 0 <= number < len(self):
            raise IndexError(f"record {number} of {len(self)}")
        shard = bisect_right(self._ends, number)
        offsets = self._offsets[shard]
        local = number - (self._ends[shard] - (len(offsets) - 1))
        return shard, int(offsets[local]), int(offsets[local + 1]) - int(offsets[local])

    def _file(self, shard: int) -> "_OpenFile":
        """Returns an open shard; the least recently used one is let go, and closes when no thread reads it."""
        with self._lock:
            if shard not in self._open:
                self._open[shard] = _OpenFile(self.paths[shard])
                if len(self._open) > _OPEN_FILES:
                    self._open.popitem(last=False)
            self._open.move_to_end(shard)
            return self._open[shard]


class _OpenFile:
    """A file descriptor that closes with its last reference."""

    def __init__(self, path: str):
        self.path, self._descriptor = path, -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; expected a TFRecord file that can be read") from error
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: not a regular file; expected a TFRecord file")
        self.size = status.st_size

    def __enter__(self) -> "_OpenFile":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self):
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def pread(self, size: int, offset: int) -> bytes:
        """Reads exactly `size` bytes at the beginning of a record, which the caller has found to lie in the file."""
        try:
            data = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise DataError(f"{self.path}: byte {offset}: {error.strerror}") from error
        if len(data) != size:
            self.size = os.fstat(self._descriptor).st_size
            raise _cut_short(self, offset, size)
        return data


def _payload_length(file: _OpenFile, offset: int) -> int:
    """Returns a record's payload length from its header; the checksum fits, and the file holds such a record."""
    if file.size - offset < _FRAME:
        raise _cut_short(file, offset, _FRAME)
    header = file.pread(_HEADER.size, offset)
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        if offset == 0 and header.startswith(b"\x1f\x8b"):
            raise DataError(f"{file.path}: byte 0: this is gzip, not plain TFRecord; uncompress it first (gunzip)")
        raise DataError(
            f"{file.path}: byte {offset}: the checksum of the record's length does not fit: not a TFRecord "
            "file, or a damaged one; copy or prepare it again"
        )
    if length > file.size - offset - _FRAME:
        raise _cut_short(file, offset, length + _FRAME)
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


def _read_index(path: str, size: int) -> np.ndarray | None:
    """Returns the offsets beside a file, or None if there are none that fit it.

    An index is ours only if it begins as numpy's file of so many offsets does: what another header claims is neither
    allocated nor interpreted.
    """
    try:
        # Without O_NONBLOCK, a pipe of that name would keep us waiting.
        with open(os.open(path + ".index", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            count = (status.st_size - len(_index_header(0))) // 8
            if not stat.S_ISREG(status.st_mode) or not 2 <= count <= size // _FRAME + 1:
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
    """Whether offsets are those of records that fill a file of `size` bytes."""
    if offsets[0] != 0 or offsets[-1] != size or offsets.max() > size:
        return False
    blocks = range(0, len(offsets) - 1, _INDEX_IN_MEMORY)
    return all(
        (np.diff(offsets[begin : begin + _INDEX_IN_MEMORY + 1].view(np.int64)) >= _FRAME).all() for begin in blocks
    )


def _index_header(count: int) -> bytes:
    """Returns how numpy's file of uint64 [count] begins."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<u8", "fortran_order": False, "shape": (count,)})
    return header.getvalue()


def _write_index(path: str, offsets: np.ndarray) -> None:
    """Writes the offsets beside a file at once: another process sees the whole index or none."""
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
