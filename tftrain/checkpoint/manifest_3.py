"""Reads manifests of format 3, which list the pieces of every file, for runs that go on from an older checkpoint."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tftrain import strict_json
from tftrain.checkpoint.piece import Piece
from tftrain.checkpoint.placement import Placement, Tensor
from tftrain.checkpoint.shard import Written

FORMAT_VERSION = 3

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


def decode(found: Any) -> tuple[int, dict[str, Any], Placement]:
    """Returns the step, the description of the run and the files of a manifest, which must still be checked.

    Args:
        found: parsed JSON.

    Raises:
        ValueError: an entry has another type than format 3 says; the message names it.
    """
    content = strict_json.convert(found, _Content)
    tensors = strict_json.convert_each(content.tensors, TensorEntry, "tensors")
    files = {}
    for name, entry in strict_json.convert_each(content.files, FileEntry, "files").items():
        pieces = strict_json.convert_each(entry.pieces, PieceEntry, f"files.{name}.pieces")
        digests = {"xxh3_128": entry.xxh3_128, "sha256": entry.sha256}
        files[name] = Written(entry.bytes, digests, tuple(_piece(each, pieces[each], tensors) for each in pieces))
    placement = Placement.of(files)
    without_pieces = {name: Tensor(entry.dtype, entry.shape, ()) for name, entry in tensors.items()}
    placement = dataclasses.replace(placement, tensors=without_pieces | placement.tensors)
    return content.step, content.run, placement


def _piece(name: str, entry: PieceEntry, tensors: Mapping[str, TensorEntry]) -> Piece:
    if name not in tensors:
        raise ValueError(f"a piece of the unknown tensor {strict_json.shown(name)}")
    dtype, whole = tensors[name].dtype, tensors[name].shape
    offset = (0,) * len(whole) if entry.offset is None else entry.offset
    shape = whole if entry.shape is None else entry.shape
    start, stop = entry.stretch or (0, min(math.prod(shape), 2**63 - 1))
    return Piece(name, whole, dtype, offset, shape, start, stop)
