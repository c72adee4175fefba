"""The manifest of a checkpoint, JSON, written last: every tensor, every file, and the pieces in each file.

A manifest may be damaged or forged, so reading checks everything that other code relies on: types, sizes, file names,
and that the pieces hold every element of every tensor exactly once.
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
from msgspec import Meta

from tftrain import strict_json
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.piece import Piece, coverage_error
from tftrain.checkpoint.shard import Written
from tftrain.checkpoint.source import open_file

NAME = "manifest.json"
FORMAT_VERSION = 3
FILE = re.compile(r"shard_\d{5,7}_\d{3,5}\.safetensors", re.ASCII)
TENSOR = re.compile(r"[\w./:-]{1,512}", re.ASCII)
# More than the elements of a trillion parameters, and more than the dimensions of any tensor.
MAX_ELEMENTS, MAX_DIMENSIONS = 2**48, 8
# Enough for the pieces of several thousand ranks. The parsed Python objects take about ten times as much memory.
MAX_BYTES = 2**26
# Blocks of a tensor are compared in pairs; there is one for each tensor parallel rank.
MAX_BLOCKS = 1024

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Shape = tuple[Count, ...]


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole tensor: a key of `DTYPES`, and the shape."""

    dtype: Literal["F64", "F32", "I64"]
    shape: Shape


class PieceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece: offset and shape of its block, and its stretch. A missing field stands for the whole tensor or block."""

    offset: Shape | None = None
    shape: Shape | None = None
    stretch: tuple[Count, Count] | None = None


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard: its size, its digests in hexadecimal, and its pieces by the names of their tensors, in their order."""

    bytes: Count
    xxh3_128: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    pieces: dict[str, Any]


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format_version: Literal[FORMAT_VERSION]
    step: Count
    run: dict[str, Any]
    tensors: dict[str, Any]
    files: dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint.

    Attributes:
        step: updates done.
        files: by name; together their pieces hold every tensor exactly once.
        run: description of the run that wrote it, in JSON's types; see `docs/checkpoints.md`.
    """

    step: int
    files: Mapping[str, Written]
    run: Mapping[str, Any]

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Returns dtype and shape of every tensor by name."""
        return {piece.name: (piece.dtype, piece.whole) for file in self.files.values() for piece in file.pieces}


def encode(manifest: Manifest) -> bytes:
    """Returns the JSON of a manifest.

    Raises:
        CheckpointError: `decode` would refuse it.
    """
    content = {
        "format_version": FORMAT_VERSION,
        "step": manifest.step,
        "run": manifest.run,
        "tensors": {
            name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in manifest.tensors().items()
        },
        "files": {name: encode_file(file) for name, file in manifest.files.items()},
    }
    text = json.dumps(content, indent=1).encode()
    decode(text, NAME)
    return text


def encode_file(file: Written) -> dict[str, Any]:
    """Returns the entry of a file, in JSON's types. Pieces have only the fields that differ from the whole."""
    pieces = {}
    for piece in file.pieces:
        entry = {}
        if piece.shape != piece.whole:
            entry |= {"offset": list(piece.offset), "shape": list(piece.shape)}
        if piece.size != math.prod(piece.shape):
            entry["stretch"] = [piece.start, piece.stop]
        pieces[piece.name] = entry
    return {"bytes": file.bytes, **file.digests, "pieces": pieces}


def read(folder: Path) -> Manifest:
    """Reads and checks the manifest of a checkpoint.

    Raises:
        CheckpointError: it is missing, or this version can't have written it.
    """
    path = folder / NAME
    with os.fdopen(open_file(path), "rb") as file:
        try:
            content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise CheckpointError(f"{path}: can't be read: {error.strerror}") from error
    return decode(content, path)


def decode(content: bytes, path: str | Path) -> Manifest:
    """Returns the manifest in a file.

    Args:
        content: of the file; of a file with more than `MAX_BYTES`, at least one byte more than that.
        path: of the file, for the message.

    Raises:
        CheckpointError: this version can't have written it.
    """
    try:
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return _manifest(strict_json.parse(content))
    except ValueError as error:
        raise CheckpointError(f"{path}: not the manifest of a checkpoint: {error}") from error


def _manifest(found: Any) -> Manifest:
    version = found.get("format_version") if isinstance(found, dict) else None
    if version != FORMAT_VERSION:
        raise ValueError(f"expected format_version {FORMAT_VERSION}, found {strict_json.shown(version)}")
    content = strict_json.convert(found, _Content)
    tensors = decode_tensors(content.tensors)
    files = decode_files(content.files, tensors)
    _check_coverage(tensors, files)
    return Manifest(content.step, files, content.run)


def decode_tensors(content: Any) -> dict[str, TensorEntry]:
    """Returns the tensors that an object of entries describes, by name.

    Raises:
        ValueError: an entry is invalid; the message names it.
    """
    tensors = strict_json.convert_each(content, TensorEntry, "tensors")
    for name, tensor in tensors.items():
        if not TENSOR.fullmatch(name):
            raise ValueError(f"{strict_json.shown(name)} is no name of a tensor")
        if len(tensor.shape) > MAX_DIMENSIONS or math.prod(tensor.shape) > MAX_ELEMENTS:
            raise ValueError(f"{name} has shape {strict_json.shown(tensor.shape)}, more than this version can hold")
    return tensors


def decode_files(content: Any, tensors: Mapping[str, TensorEntry]) -> dict[str, Written]:
    """Returns the files that an object of `encode_file` entries describes, by name.

    Args:
        content: parsed JSON.
        tensors: of which the files hold pieces.

    Raises:
        ValueError: an entry is invalid; the message names it.
    """
    files = {}
    for name, entry in strict_json.convert_each(content, FileEntry, "files").items():
        if not FILE.fullmatch(name):
            raise ValueError(f"{strict_json.shown(name)} is no name of a shard")
        found = strict_json.convert_each(entry.pieces, PieceEntry, f"files.{name}.pieces")
        pieces = tuple(_piece(tensor, piece, tensors) for tensor, piece in found.items())
        if entry.bytes < sum(piece.nbytes for piece in pieces):
            raise ValueError(f"{name} has {entry.bytes} bytes, too few for its pieces")
        files[name] = Written(entry.bytes, {"xxh3_128": entry.xxh3_128, "sha256": entry.sha256}, pieces)
    return files


def _piece(name: str, entry: PieceEntry, tensors: Mapping[str, TensorEntry]) -> Piece:
    if name not in tensors:
        raise ValueError(f"a piece of the unknown tensor {strict_json.shown(name)}")
    dtype, whole = tensors[name].dtype, tensors[name].shape
    offset = (0,) * len(whole) if entry.offset is None else entry.offset
    shape = whole if entry.shape is None else entry.shape
    if len(offset) != len(whole) or len(shape) != len(whole):
        raise ValueError(f"a piece of {name} has other dimensions than the tensor")
    if any(begin + size > end for begin, size, end in zip(offset, shape, whole, strict=True)):
        raise ValueError(f"a piece of {name} leads out of the tensor")
    start, stop = entry.stretch or (0, math.prod(shape))
    if not start < stop <= math.prod(shape):
        raise ValueError(f"a piece of {name} is empty or leads out of its block")
    return Piece(name, whole, dtype, offset, shape, start, stop)


def _check_coverage(tensors: Mapping[str, TensorEntry], files: Mapping[str, Written]) -> None:
    """Raises a ValueError unless the pieces in the files hold every element of every tensor exactly once."""
    pieces: dict[str, list[Piece]] = {name: [] for name in tensors}
    for file in files.values():
        for piece in file.pieces:
            pieces[piece.name].append(piece)
    for name, found in pieces.items():
        if not found:
            raise ValueError(f"{name} is in no file")
        if len({(piece.offset, piece.shape) for piece in found}) > MAX_BLOCKS:
            raise ValueError(f"{name} is cut into more than {MAX_BLOCKS} blocks")
        if reason := coverage_error(found):
            raise ValueError(f"{name}: {reason}")
