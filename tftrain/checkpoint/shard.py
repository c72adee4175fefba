"""A shard: slices of tensors in one safetensors file, written and read strictly.

The format is https://huggingface.co/docs/safetensors: eight bytes with the length of the header, the header as JSON,
and the elements. The safetensors library copies every tensor before it writes, computes no digest, and does not compare
a header with a manifest. This module hashes a file while it writes, without a copy, and accepts only the header that
the manifest implies.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from tftrain.checkpoint import source
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.source import BLOCK_BYTES
from tftrain.checkpoint.tensor_slice import DTYPES, TensorData, TensorSlice
from tftrain.files import durable

# Several files of a rank can be read and hashed at the same time.
SHARD_BYTES = 2**26
# Digests of every file. The first detects damage and is much faster than disks. Only the second resists forgery.
DIGESTS = {"xxh3_128": xxhash.xxh3_128, "sha256": hashlib.sha256}


class Written(NamedTuple):
    """A complete file: its size in bytes, its digests in hexadecimal by their names in `DIGESTS`, and its slices."""

    bytes: int
    digests: Mapping[str, str]
    pieces: tuple[TensorSlice, ...]


def in_file_order(pieces: Iterable[TensorSlice]) -> list[TensorSlice]:
    """Returns slices in the order in which files have them: by name, the dtypes with most bytes per element first.

    With this order, the offset of each element is a multiple of its size, as the format requires, and a manifest need
    not state the order.
    """
    return sorted(pieces, key=lambda piece: (-DTYPES[piece.dtype].itemsize, piece.name))


def pack(pieces: Iterable[TensorSlice]) -> list[list[TensorSlice]]:
    """Divides slices, at most one of each tensor, among files of about `SHARD_BYTES`, in the order of the files."""
    files: list[list[TensorSlice]] = []
    free_bytes = 0
    for piece in in_file_order(pieces):
        if free_bytes <= 0:
            files.append([])
            free_bytes = SHARD_BYTES
        files[-1].append(piece)
        free_bytes -= piece.nbytes
    return files


def write(path: Path, pieces: Sequence[TensorSlice], values: Iterable[np.ndarray]) -> Written:
    """Writes a file, which must not exist, and flushes it to the disk.

    There is at most one slice of each tensor. The elements of each are flat, and one slice's are needed at a time.

    Raises:
        OSError: the file can't be written.
    """
    digests, size = {name: make() for name, make in DIGESTS.items()}, 0
    with open(path, "xb", buffering=0) as file:
        for part in itertools.chain([_header(pieces)], values):
            view = memoryview(part).cast("B")
            for begin in range(0, len(view), BLOCK_BYTES):
                block = view[begin : begin + BLOCK_BYTES]
                for digest in digests.values():
                    digest.update(block)
                written = 0
                while written < len(block):
                    written += file.write(block[written:])
                size += len(block)
        durable.flush_file(file.fileno(), path)
    return Written(size, {name: digest.hexdigest() for name, digest in digests.items()}, tuple(pieces))


def _header(pieces: Sequence[TensorSlice]) -> bytes:
    """Returns the header of a file that holds slices in this order, with its length before it."""
    entries, position = {}, 0
    for piece in pieces:
        end = position + piece.nbytes
        entries[piece.name] = {"dtype": piece.dtype, "shape": list(piece.stored_shape), "data_offsets": [position, end]}
        position = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def load(
    path: Path, expected: Written, allocate: Callable[[TensorSlice], np.ndarray | None], check: str = ""
) -> Iterator[TensorData]:
    """Reads a file once from its beginning to its end.

    Args:
        path, expected: the file, and its description in the manifest.
        allocate: returns flat memory for the elements of a slice, or None to skip the slice.
        check: the key of `DIGESTS` to compare after the last slice, which needs the skipped slices as well; "": none.

    Yields:
        The slices that are not skipped, and their elements.

    Raises:
        CheckpointError: the file can't be read, or its size, its header or its digest differs from the manifest.
    """
    header = _header(expected.pieces)
    digest, position = DIGESTS[check](header) if check else None, len(header)
    is_whole = expected.bytes == len(header) + sum(piece.nbytes for piece in expected.pieces)
    with source.opened(path, expected.bytes) as blocks:
        if not is_whole or b"".join(map(bytes, blocks(0, len(header)))) != header:
            raise CheckpointError(f"{path}: damaged: its header or its size is not what the manifest's tensors give")
        for piece in expected.pieces:
            values = allocate(piece)
            if values is not None or digest:
                target = None if values is None else values.view(np.uint8)
                for block in blocks(position, position + piece.nbytes, target):
                    if digest:
                        digest.update(block)
            if values is not None:
                yield TensorData(piece, values)
            position += piece.nbytes
    if digest and (actual := digest.hexdigest()) != expected.digests[check]:
        raise CheckpointError(f"{path}: damaged: its {check} is {actual}, expected {expected.digests[check]}")
