"""Decompresses gzip, zstd, bzip2 and xz while a file is read. The first bytes of a file tell how it is compressed."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from typing import BinaryIO

from tftrain.input.errors import DataError

ENDINGS = (".gz", ".zst", ".bz2", ".xz")
_PART_BYTES = 1 << 20
_FIRST_BYTES = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
}


def decompressed(stream: io.BufferedReader, name: str) -> io.BufferedReader:
    """Returns a stream of the content of a compressed file, and the stream itself if the file is not compressed.

    A read of the new stream raises DataError if the file is damaged, or cut short.
    """
    first = stream.peek(10)
    for kind, pattern in _FIRST_BYTES.items():
        if pattern.match(first):
            return io.BufferedReader(_Decompressed(stream, kind, name), _PART_BYTES)
    return stream


class _Decompressed(io.RawIOBase):
    def __init__(self, stream: BinaryIO, kind: str, name: str):
        self._stream, self._kind, self._name = _open(stream, kind), kind, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            block = self._stream.read(len(buffer))
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            if getattr(error, "strerror", None):  # The file can't be read.
                raise
            if isinstance(error, EOFError) or "Truncated" in str(error):
                raise DataError(f"{self._name}: the {self._kind} file is cut short; copy it again") from error
            raise DataError(f"{self._name}: a damaged {self._kind} file ({error}); copy it again") from error
        buffer[: len(block)] = block
        return len(block)


def _open(stream: BinaryIO, kind: str) -> BinaryIO:
    if kind == "gzip":
        return gzip.GzipFile(fileobj=stream)
    if kind == "bzip2":
        return bz2.BZ2File(stream)
    if kind == "xz":
        return lzma.LZMAFile(stream)
    import pyarrow

    # The package zstandard does not tell that a file is cut short.
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, mode="r"), "zstd")
