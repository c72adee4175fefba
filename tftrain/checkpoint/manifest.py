"""The manifest of a checkpoint, JSON, written last: every file, every tensor, and the slices of each tensor.

A manifest may be damaged or forged, so reading checks everything that other code relies on: types, sizes, file names,
and that the slices hold every element of every tensor exactly once.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.placement import Placement, nbytes, rows_of, series_of
from tftrain.checkpoint.shard import Written
from tftrain.checkpoint.source import open_file
from tftrain.checkpoint.tensor_slice import Count, Shape, TensorSlice, coverage_error
from tftrain.files import strict_json
from tftrain.files.reading import read_at_most

NAME = "manifest.json"
FORMAT_VERSION = 4
FILE = re.compile(r"shard_\d{5,7}_\d{3,5}\.safetensors", re.ASCII)
TENSOR = re.compile(r"[\w./:-]{1,512}", re.ASCII)
# More than the elements of a trillion parameters, and more than the dimensions of any tensor.
MAX_ELEMENTS, MAX_DIMENSIONS = 2**48, 8
# More than ten times what 4,096 ranks of a model with 5.6 billion parameters need. The parsed Python objects take about
# ten times as much memory.
MAX_BYTES = 2**26
# All tensors together have fewer: four times as many as those ranks write, of 24 bytes each.
MAX_PIECES = 2**24
# Blocks of a tensor are compared in pairs; there is one for each tensor parallel rank.
MAX_BLOCKS = 1024

# See `series_of`: one slice, or several.
SeriesEntry = Annotated[list[Count], Meta(min_length=3, max_length=6)]


class BlockEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The slices of one block of a tensor; without offset and shape, the block is the whole tensor."""

    pieces: list[SeriesEntry]
    offset: Shape | None = None
    shape: Shape | None = None


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole tensor: a key of `DTYPES`, the shape, and the slices by block."""

    dtype: Literal["F64", "F32", "I64"]
    shape: Shape
    blocks: list[BlockEntry]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard: its size, and its digests in hexadecimal."""

    bytes: Count
    xxh3_128: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format_version: Literal[FORMAT_VERSION]
    step: Count
    run: dict[str, Any]
    tensors: dict[str, Any]
    files: dict[str, Any]


@dataclass(frozen=True)
class CheckpointManifest:
    """The content of a checkpoint."""

    step: int  # updates done
    files: Placement  # by name, with their slices, which together hold every tensor exactly once
    run: Mapping[str, Any]  # description of the run that wrote it, in JSON's types; see `docs/checkpoint_format.md`


def encode(manifest: CheckpointManifest) -> bytes:
    """Returns the JSON of a manifest; raises a CheckpointError if `decode` would refuse it."""
    files = manifest.files.files
    content = {
        "format_version": FORMAT_VERSION,
        "step": manifest.step,
        "run": manifest.run,
        "files": {name: {"bytes": files[name].bytes, **files[name].digests} for name in sorted(files)},
        "tensors": {name: _tensor(blocks) for name, blocks in manifest.files.tensors.items()},
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    decode(text, NAME)
    return text


def _tensor(blocks: Mapping[TensorSlice, np.ndarray]) -> dict[str, Any]:
    first = next(iter(blocks))
    return {"dtype": first.dtype, "shape": first.whole, "blocks": [_block(*each) for each in blocks.items()]}


def _block(block: TensorSlice, rows: np.ndarray) -> dict[str, Any]:
    pieces = {"pieces": list(series_of(rows))}
    return {"offset": block.offset, "shape": block.shape, **pieces} if block.is_divided else pieces


def content_of(folder: Path) -> bytes:
    """Returns the bytes of a manifest, at most one more than `MAX_BYTES`; raises a CheckpointError if it can't."""
    path = folder / NAME
    with os.fdopen(open_file(path), "rb") as file:
        try:
            return read_at_most(file, MAX_BYTES + 1)
        except OSError as error:
            raise CheckpointError(f"{path}: can't be read: {error.strerror}") from error


def read(folder: Path) -> CheckpointManifest:
    """Reads a manifest; raises a CheckpointError if it is missing, or this version can't have written it."""
    return decode(content_of(folder), folder / NAME)


def decode(content: bytes, path: str | Path) -> CheckpointManifest:
    """Returns the manifest in a file; of a too large one, `content` needs only one byte more than `MAX_BYTES`.

    Raises:
        CheckpointError: this version can't have written it.
    """
    try:
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        parsed = strict_json.parse(content)
        version = parsed.get("format_version") if isinstance(parsed, dict) else None
        if version != FORMAT_VERSION:
            difference = f"format_version is {strict_json.shown(version)}, expected {FORMAT_VERSION}"
            raise ValueError(f"{difference}; resume with the version of tftrain that has written the checkpoint")
        converted = strict_json.convert(parsed, _Content)
        return CheckpointManifest(converted.step, _placement(converted), converted.run)
    except ValueError as error:
        raise CheckpointError(f"{path}: not the manifest of a checkpoint: {error}") from error


def _placement(content: _Content) -> Placement:
    """Returns all files; raises a ValueError unless they hold every element of every tensor exactly once."""
    files = {
        name: Written(entry.bytes, {"xxh3_128": entry.xxh3_128, "sha256": entry.sha256}, ())
        for name, entry in strict_json.convert_each(content.files, FileEntry, "files").items()
    }
    for name in files:
        if not FILE.fullmatch(name):
            raise ValueError(f"{strict_json.shown(name)} is not the name of a shard")
    entries = strict_json.convert_each(content.tensors, TensorEntry, "tensors")
    left = MAX_PIECES
    for name, entry in entries.items():
        left -= _check(name, entry, len(files))
    if left < 0:
        raise ValueError(f"it has more than {MAX_PIECES} pieces")
    placement = Placement(files, {name: _blocks(name, entry) for name, entry in entries.items()})
    for name, size in nbytes(placement).items():
        if files[name].bytes < size:
            raise ValueError(f"{name} has {files[name].bytes} bytes, too few for its pieces")
    return placement


def _blocks(name: str, tensor: TensorEntry) -> dict[TensorSlice, np.ndarray]:
    """Returns file number, start and stop of each slice of each block; a ValueError if they do not hold all once."""
    blocks: dict[TensorSlice, np.ndarray] = {}
    for entry in tensor.blocks:
        block = TensorSlice.block(name, tensor.shape, tensor.dtype, entry.offset, entry.shape)
        if block in blocks:
            raise ValueError(f"{name}: a block occurs twice")
        blocks[block] = rows_of(entry.pieces)
    ranges = {(block.offset, block.shape): rows[:, 1:] for block, rows in blocks.items()}
    if reason := coverage_error(tensor.shape, ranges):
        raise ValueError(f"{name}: {reason}")
    return blocks


def _check(name: str, tensor: TensorEntry, files: int) -> int:
    """Returns the number of slices.

    Raises a ValueError unless the blocks are in the tensor, and each slice is in its block and file.
    """
    if not TENSOR.fullmatch(name):
        raise ValueError(f"{strict_json.shown(name)} is not the name of a tensor")
    if len(tensor.shape) > MAX_DIMENSIONS or math.prod(tensor.shape) > MAX_ELEMENTS:
        raise ValueError(f"{name} has shape {strict_json.shown(tensor.shape)}, more than this version can hold")
    if not all([tensor.blocks, *(block.pieces for block in tensor.blocks)]):
        raise ValueError(f"{name}, or a block of it, is in no file")
    if len(tensor.blocks) > MAX_BLOCKS:
        raise ValueError(f"{name} is cut into more than {MAX_BLOCKS} blocks")
    total = 0
    for block in tensor.blocks:
        part = TensorSlice.block(name, tensor.shape, tensor.dtype, block.offset, block.shape)
        if len(part.offset) != len(tensor.shape) or len(part.shape) != len(tensor.shape):
            raise ValueError(f"a piece of {name} has other dimensions than the tensor")
        if any(begin + size > end for begin, size, end in zip(part.offset, part.shape, part.whole, strict=True)):
            raise ValueError(f"a piece of {name} lies outside the tensor")
        for series in block.pieces:
            if len(series) not in (3, 6):
                raise ValueError(f"tensors.{name}: expected pieces of 3 or 6 numbers")
            file, start, stop, count, file_step, step = (*series, 1, 1, 0)[:6]
            if not 1 <= count <= files or file + (count - 1) * file_step >= files or not file_step:
                raise ValueError(f"a piece of {name} is in a file that does not exist")
            if not start < stop <= stop + (count - 1) * step <= part.size:
                raise ValueError(f"a piece of {name} is empty or lies outside its block")
            total += count
    return total
