"""A shard: pieces of tensors in one safetensors file, written and read strictly.

The format is https://huggingface.co/docs/safetensors: eight bytes that say how long the header is, the header as JSON,
and the elements. The library of that name copies every tensor before it writes and hashes nothing, and checks a header
on its own terms. Here a file is hashed while it is written, without a copy, and a header must say what the manifest
says and nothing else.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.piece import DTYPES, Piece

# What was just read or copied is hashed while it is in the processor's cache.
BLOCK_BYTES = 2**21
# Several files of a rank can be read and hashed at the same time.
SHARD_BYTES = 2**26
HEADER_BYTES = 2**26


# A piece and its elements, flat.
Owned = tuple[Piece, np.ndarray]


class Written(NamedTuple):
    """A finished file: its size in bytes, its SHA-256 in hexadecimal, and the pieces in it."""

    bytes: int
    sha256: str
    pieces: tuple[Piece, ...]


def groups(owned: Sequence[Owned]) -> list[list[Owned]]:
    """Packs pieces into files of about `SHARD_BYTES`, the widest elements first.

    Elements then lie where their width divides the offset, as the format demands.
    """
    found: list[list[Owned]] = []
    room = 0
    for each in sorted(owned, key=lambda each: -each[1].itemsize):
        if room <= 0:
            found.append([])
            room = SHARD_BYTES
        found[-1].append(each)
        room -= each[1].nbytes
    return found


def write(path: Path, owned: Sequence[Owned]) -> Written:
    """Writes a file and flushes it to the disk.

    Args:
        path: of the file, which must not exist.
        owned: what belongs into it, not two pieces of one tensor.

    Raises:
        OSError: it can't be written.
    """
    pieces = tuple(piece for piece, _ in owned)
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:
        for part in (_header(pieces), *(values for _, values in owned)):
            view = memoryview(part).cast("B")
            for begin in range(0, len(view), BLOCK_BYTES):
                block = view[begin : begin + BLOCK_BYTES]
                digest.update(block)
                written = 0
                while written < len(block):
                    written += file.write(block[written:])
                size += len(block)
        os.fsync(file.fileno())
    return Written(size, digest.hexdigest(), pieces)


def _header(pieces: Sequence[Piece]) -> bytes:
    entries = json.dumps(_entries(pieces), separators=(",", ":")).encode()
    entries += b" " * (-len(entries) % 8)
    return len(entries).to_bytes(8, "little") + entries


def _entries(pieces: Sequence[Piece]) -> dict[str, dict]:
    """Returns what the header says of pieces that lie in a file in this order."""
    entries, position = {}, 0
    for piece in pieces:
        end = position + piece.nbytes
        entries[piece.name] = {
            "dtype": piece.dtype,
            "shape": list(piece.stored_shape),
            "data_offsets": [position, end],
        }
        position = end
    return entries


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


def load(
    path: Path, expected: Written, room: Callable[[Piece], np.ndarray | None] | None = None, check: bool = False
) -> Iterator[tuple[Piece, np.ndarray]]:
    """Reads a file from its beginning to its end, once.

    Args:
        path: of the file.
        expected: what the manifest says of it.
        room: gives memory for the elements of a piece, flat, or None if they are not wanted; by default new memory.
        check: whether to compare the SHA-256, after the last piece. What is not wanted is read for that as well.

    Yields:
        The pieces that are wanted, and the elements of each.

    Raises:
        CheckpointError: it can't be read, or its size, its header or its SHA-256 is not what the manifest says.
    """
    digest, spare = hashlib.sha256(), np.empty(BLOCK_BYTES, np.uint8)
    with os.fdopen(open_file(path), "rb", buffering=0) as file:
        _check_size(path, file.fileno(), expected)
        # The disk goes on reading while this thread hashes.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED if check else os.POSIX_FADV_SEQUENTIAL)
        digest.update(_read_header(path, file, expected))
        for piece in expected.pieces:
            values = room(piece) if room else np.empty(piece.size, DTYPES[piece.dtype])
            if values is None and not check:
                file.seek(piece.nbytes, os.SEEK_CUR)
                continue
            for begin in range(0, piece.nbytes, BLOCK_BYTES):
                size = min(piece.nbytes - begin, BLOCK_BYTES)
                block = spare[:size] if values is None else values.view(np.uint8)[begin : begin + size]
                _fill(path, file, block)
                if check:
                    digest.update(block)
            if values is not None:
                yield piece, values
    if check and digest.hexdigest() != expected.sha256:
        raise CheckpointError(f"{path}: damaged: its SHA-256 is {digest.hexdigest()}, expected {expected.sha256}")


def _check_size(path: Path, descriptor: int, expected: Written) -> None:
    size = os.fstat(descriptor).st_size
    if size != expected.bytes:
        raise CheckpointError(f"{path}: damaged: it has {size} bytes, expected {expected.bytes}")


def _read_header(path: Path, file: FileIO, expected: Written) -> bytes:
    """Returns the header, with its length before it, when it is what the manifest implies."""
    start = bytearray(min(8, expected.bytes))
    _fill(path, file, start)
    length = int.from_bytes(start, "little")
    if length > min(HEADER_BYTES, expected.bytes - 8):
        raise CheckpointError(f"{path}: damaged: a header of {length} bytes in a file of {expected.bytes}")
    text = bytearray(length)
    _fill(path, file, text)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: its header is not JSON: {error}") from error
    entries = _entries(expected.pieces)
    if header != entries or list(header) != list(entries):
        raise CheckpointError(f"{path}: damaged: its header and the manifest name different tensors or places")
    if 8 + length + sum(piece.nbytes for piece in expected.pieces) != expected.bytes:
        raise CheckpointError(f"{path}: damaged: it has {expected.bytes} bytes, more or fewer than its tensors")
    return bytes(start + text)


def _fill(path: Path, file: FileIO, block: bytearray | np.ndarray) -> None:
    """Reads as many bytes as there is room for."""
    rest = memoryview(block)
    while len(rest):
        try:
            read = file.readinto(rest)
        except OSError as error:
            raise CheckpointError(f"{path}: can't be read: {error.strerror}") from error
        if not read:
            raise CheckpointError(f"{path}: damaged: it ends before its {len(rest)} last bytes")
        rest = rest[read:]
