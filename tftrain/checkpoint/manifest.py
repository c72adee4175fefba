"""The manifest of a checkpoint: every tensor, every file, and which pieces are where; JSON, written last.

What is read may have been damaged or made up, so nothing of it is believed: types, sizes and file names are checked,
and that the pieces hold every element of every tensor exactly once. After that, no other code has to ask.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.piece import DTYPES, Piece, coverage_error
from tftrain.checkpoint.shard import DIGESTS, Written
from tftrain.checkpoint.source import open_file

NAME = "manifest.json"
FORMAT_VERSION = 3
FILE = re.compile(r"shard_\d{5,7}_\d{3,5}\.safetensors", re.ASCII)
TENSOR = re.compile(r"[\w./:-]{1,512}", re.ASCII)
DIGEST = {name: re.compile(f"[0-9a-f]{{{2 * make().digest_size}}}", re.ASCII) for name, make in DIGESTS.items()}
# A trillion parameters have fewer elements, and no tensor has so many dimensions.
MAX_ELEMENTS, MAX_DIMENSIONS = 2**48, 8
# What the pieces of several thousand ranks need; as Python's objects they take some ten times as much.
MAX_BYTES = 2**26
# Two blocks of a tensor are compared with each other; one for each tensor parallel rank.
MAX_BLOCKS = 1024


@dataclass(frozen=True)
class Manifest:
    """What is in a checkpoint.

    Attributes:
        step: updates done.
        files: by name; the pieces in all of them hold every tensor exactly once.
        run: what else there is to know of the run that wrote it, in JSON's types; see `docs/checkpoints.md`.
    """

    step: int
    files: Mapping[str, Written]
    run: Mapping[str, Any]

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Returns dtype and shape of every tensor by name."""
        return {piece.name: (piece.dtype, piece.whole) for file in self.files.values() for piece in file.pieces}


class _Invalid(ValueError):
    """Why a manifest can't be used."""


def encode(manifest: Manifest) -> bytes:
    """Returns the JSON of a manifest.

    Raises:
        CheckpointError: it would be refused when it is read; by then it would be too late.
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
    """Returns what is said of a file, in JSON's types; of a piece, where it is not all of its tensor or block."""
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
        CheckpointError: there is none, or it is not one that this version can have written.
    """
    path = folder / NAME
    with os.fdopen(open_file(path), "rb") as file:
        try:
            content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise CheckpointError(f"{path}: can't be read: {error.strerror}") from error
    return decode(content, path)


def decode(content: bytes, path: str | Path) -> Manifest:
    """Returns the manifest that a file holds.

    Args:
        content: of the file, or its first bytes if it has more than `MAX_BYTES`.
        path: for the message.

    Raises:
        CheckpointError: it is not one that this version can have written.
    """
    try:
        if len(content) > MAX_BYTES:
            raise _Invalid(f"it has more than {MAX_BYTES} bytes")
        found = json.loads(content, object_pairs_hook=_object, parse_constant=_no_number)
        return _manifest(found)
    except RecursionError:
        raise CheckpointError(f"{path}: not the manifest of a checkpoint: nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not the manifest of a checkpoint: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Invalid("a name occurs twice in an object")
    return found


def _no_number(word: str):
    raise _Invalid(f"{word} is not a number of JSON")


def _manifest(content: Any) -> Manifest:
    if not isinstance(content, dict) or content.get("format_version") != FORMAT_VERSION:
        given = content.get("format_version") if isinstance(content, dict) else None
        raise _Invalid(f"expected format_version {FORMAT_VERSION}, found {_shown(given)}")
    _fields("the manifest", content, {"format_version", "step", "run", "tensors", "files"})
    tensors = {name: _tensor(name, entry) for name, entry in _of_type("tensors", content["tensors"], dict).items()}
    files = {name: _file(name, entry, tensors) for name, entry in _of_type("files", content["files"], dict).items()}
    _check_all_there(tensors, files)
    return Manifest(_integer("step", content["step"]), files, _of_type("run", content["run"], dict))


def _tensor(name: str, entry: Any) -> tuple[str, tuple[int, ...]]:
    if not TENSOR.fullmatch(name):
        raise _Invalid(f"{_shown(name)} is no name of a tensor")
    _fields(name, entry, {"dtype", "shape"})
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise _Invalid(f"{name} has dtype {_shown(entry['dtype'])}, expected one of {', '.join(DTYPES)}")
    shape = _integers(f"shape of {name}", entry["shape"])
    if len(shape) > MAX_DIMENSIONS or math.prod(shape) > MAX_ELEMENTS:
        raise _Invalid(f"{name} has shape {_shown(shape)}, more than this version can hold")
    return entry["dtype"], shape


def _file(name: str, entry: Any, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Written:
    if not FILE.fullmatch(name):
        raise _Invalid(f"{_shown(name)} is no name of a shard")
    return decode_file(name, entry, tensors)


def decode_file(name: str, entry: Any, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Written:
    """Returns what `encode_file` has made; ValueError if it did not."""
    _fields(name, entry, {"bytes", *DIGEST, "pieces"})
    for kind, pattern in DIGEST.items():
        if not isinstance(entry[kind], str) or not pattern.fullmatch(entry[kind]):
            raise _Invalid(f"{name} has the {kind} {_shown(entry[kind])}, which is none")
    pieces = tuple(_piece(tensor, each, tensors) for tensor, each in _of_type("pieces", entry["pieces"], dict).items())
    size = _integer(f"bytes of {name}", entry["bytes"])
    if size < sum(piece.nbytes for piece in pieces):
        raise _Invalid(f"{name} has {size} bytes, too few for its pieces")
    return Written(size, {kind: entry[kind] for kind in DIGEST}, pieces)


def _piece(name: str, entry: Any, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Piece:
    if name not in tensors:
        raise _Invalid(f"a piece of the unknown tensor {_shown(name)}")
    dtype, whole = tensors[name]
    _fields(f"a piece of {name}", entry, set(), {"offset", "shape", "stretch"})
    offset = _integers(f"offset in {name}", entry.get("offset", [0] * len(whole)))
    shape = _integers(f"block of {name}", entry.get("shape", list(whole)))
    if len(offset) != len(whole) or len(shape) != len(whole):
        raise _Invalid(f"a piece of {name} has other dimensions than the tensor")
    if any(begin + size > most for begin, size, most in zip(offset, shape, whole, strict=True)):
        raise _Invalid(f"a piece of {name} leads out of the tensor")
    stretch = _integers(f"stretch of {name}", entry.get("stretch", [0, math.prod(shape)]))
    if len(stretch) != 2 or not stretch[0] < stretch[1] <= math.prod(shape):
        raise _Invalid(f"a piece of {name} is empty or leads out of its block")
    return Piece(name, whole, dtype, offset, shape, *stretch)


def _check_all_there(tensors: Mapping[str, tuple[str, tuple[int, ...]]], files: Mapping[str, Written]) -> None:
    pieces: dict[str, list[Piece]] = {name: [] for name in tensors}
    for file in files.values():
        for piece in file.pieces:
            pieces[piece.name].append(piece)
    for name, found in pieces.items():
        if not found:
            raise _Invalid(f"{name} is in no file")
        if len({(piece.offset, piece.shape) for piece in found}) > MAX_BLOCKS:
            raise _Invalid(f"{name} is cut into more than {MAX_BLOCKS} blocks")
        if reason := coverage_error(found):
            raise _Invalid(f"{name}: {reason}")


def _fields(what: str, entry: Any, required: set[str], optional: frozenset[str] | set[str] = frozenset()) -> None:
    found = set(_of_type(what, entry, dict))
    if not required <= found <= required | optional:
        listed = ", ".join(sorted(required | optional))
        raise _Invalid(f"{what} has the fields {_shown(sorted(found))}, expected {listed}")


def _of_type(what: str, value: Any, kind: type) -> Any:
    # A bool is an int to isinstance.
    if type(value) is not kind:
        raise _Invalid(f"{what} is {_shown(value)}, expected {kind.__name__}")
    return value


def _integer(what: str, value: Any) -> int:
    if not 0 <= _of_type(what, value, int) < 2**63:
        raise _Invalid(f"{what} is {_shown(value)}, expected a number from 0 to 2^63")
    return value


def _integers(what: str, values: Any) -> tuple[int, ...]:
    return tuple(_integer(what, value) for value in _of_type(what, values, list))


def _shown(value: Any) -> str:
    """Returns a value in few characters: it may be anything."""
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
