"""A shard: pieces of tensors in one safetensors file, written and read strictly.

The format is https://huggingface.co/docs/safetensors: eight bytes that say how long the header is, the header as JSON,
and the elements. The library of that name copies every tensor before it writes and hashes nothing, and checks a header
on its own terms. Here a file is hashed while it is written, without a copy, and a header must say what the manifest
says and nothing else.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.piece import DTYPES, Piece, TensorData
from tftrain.checkpoint.source import Source

# What was just written is hashed while it is in the processor's cache.
BLOCK_BYTES = 2**21
# Several files of a rank can be read and hashed at the same time.
SHARD_BYTES = 2**26
HEADER_BYTES = 2**26
# What is computed of every file. The first finds damage, many times as fast as disks are; but whoever wants to can make
# another file that has it, too, which nobody can of the second.
DIGESTS = {"xxh3_128": xxhash.xxh3_128, "sha256": hashlib.sha256}


class Written(NamedTuple):
    """A finished file: its size in bytes, its digests in hexadecimal by their names in `DIGESTS`, the pieces in it."""

    bytes: int
    digests: Mapping[str, str]
    pieces: tuple[Piece, ...]


def groups(owned: Sequence[TensorData]) -> list[list[TensorData]]:
    """Packs pieces into files of about `SHARD_BYTES`, the widest elements first.

    Elements then lie where their width divides the offset, as the format demands.
    """
    found: list[list[TensorData]] = []
    room = 0
    for each in sorted(owned, key=lambda each: -each[1].itemsize):
        if room <= 0:
            found.append([])
            room = SHARD_BYTES
        found[-1].append(each)
        room -= each[1].nbytes
    return found


def write(path: Path, owned: Sequence[TensorData]) -> Written:
    """Writes a file and flushes it to the disk.

    Args:
        path: of the file, which must not exist.
        owned: what belongs into it, not two pieces of one tensor.

    Raises:
        OSError: it can't be written.
    """
    pieces = tuple(piece for piece, _ in owned)
    digests, size = {name: make() for name, make in DIGESTS.items()}, 0
    with open(path, "xb", buffering=0) as file:
        for part in (_header(pieces), *(values for _, values in owned)):
            view = memoryview(part).cast("B")
            for begin in range(0, len(view), BLOCK_BYTES):
                block = view[begin : begin + BLOCK_BYTES]
                for digest in digests.values():
                    digest.update(block)
                written = 0
                while written < len(block):
                    written += file.write(block[written:])
                size += len(block)
        os.fsync(file.fileno())
    return Written(size, {name: digest.hexdigest() for name, digest in digests.items()}, pieces)


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


def load(
    source: Source, expected: Written, room: Callable[[Piece], np.ndarray | None] | None = None, check: str = ""
) -> Iterator[tuple[Piece, np.ndarray]]:
    """Reads a file from its beginning to its end, once.

    Args:
        source: the file, of the size that the manifest says.
        expected: what the manifest says of it.
        room: gives memory for the elements of a piece, flat, or None if they are not wanted; by default new memory.
        check: which of `DIGESTS` to compare, after the last piece; what is not wanted is read for that as well.

    Yields:
        The pieces that are wanted, and the elements of each.

    Raises:
        CheckpointError: it can't be read, or its header or its digest is not what the manifest says.
    """
    header = _read_header(source, expected)
    digest, position = DIGESTS[check](header) if check else None, len(header)
    for piece in expected.pieces:
        values = room(piece) if room else np.empty(piece.size, DTYPES[piece.dtype])
        if values is not None or digest:
            at = 0
            for block in source.blocks(position, position + piece.nbytes):
                if digest:
                    digest.update(block)
                if values is not None:
                    values.view(np.uint8)[at : at + block.size] = block
                at += block.size
        if values is not None:
            yield piece, values
        position += piece.nbytes
    if digest and digest.hexdigest() != expected.digests[check]:
        raise CheckpointError(
            f"{source.path}: damaged: its {check} is {digest.hexdigest()}, expected {expected.digests[check]}"
        )


def _read_header(source: Source, expected: Written) -> bytes:
    """Returns the header, with its length before it, when it is what the manifest implies."""
    path = source.path
    start = b"".join(map(bytes, source.blocks(0, min(8, expected.bytes))))
    length = int.from_bytes(start, "little")
    if length > min(HEADER_BYTES, expected.bytes - 8):
        raise CheckpointError(f"{path}: damaged: a header of {length} bytes in a file of {expected.bytes}")
    text = b"".join(map(bytes, source.blocks(8, 8 + length)))
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: its header is not JSON: {error}") from error
    entries = _entries(expected.pieces)
    if header != entries or list(header) != list(entries):
        raise CheckpointError(f"{path}: damaged: its header and the manifest name different tensors or places")
    if 8 + length + sum(piece.nbytes for piece in expected.pieces) != expected.bytes:
        raise CheckpointError(f"{path}: damaged: it has {expected.bytes} bytes, more or fewer than its tensors")
    return start + text
