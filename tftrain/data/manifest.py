"""The manifest of a prepared data set: what is in its folder, in one JSON file that is written last.

Reading it checks what can be checked without reading the records: that the shards are there with the sizes they had,
and that the vocabulary is the one the text was tokenized with.
"""

import contextlib
import hashlib
import json
import os
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tftrain import strict_json
from tftrain.data import vocabulary
from tftrain.data.errors import DataError
from tftrain.files import read_small

NAME = "manifest.json"
FORMAT = 1
MAX_BYTES = 16 << 20
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One TFRecord file: its name in the folder, the examples in it, its size in bytes."""

    file: str
    examples: Count
    bytes: Count


class _Splits(msgspec.Struct, forbid_unknown_fields=True):
    train: list[Shard]
    eval: list[Shard]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of the file, in their order there; `Manifest` describes them."""

    masking: Literal["dynamic", "static"]
    tokenizer_type: Literal["wordpiece", "sentencepiece"]
    vocab_file: str
    vocab_size: Annotated[int, Meta(ge=1, le=vocabulary.MAX_TOKENS)]
    vocab_sha256: str
    tokenizer_file: str | None
    lower_case: bool
    max_seq_length: Annotated[int, Meta(ge=8, le=1 << 16)]
    max_predictions_per_seq: Annotated[int, Meta(ge=1, le=1 << 16)] | None
    documents: Count
    tokens: Count
    seed: Count
    splits: dict[str, Any]


class Manifest(_Fields, frozen=True, kw_only=True):
    """A prepared data set.

    Attributes:
        folder: the folder of the manifest; not a field of the file.
        masking: "dynamic": pairs as they are, masked while training; "static": the standard BERT features.
        tokenizer_type: "wordpiece" or "sentencepiece".
        vocab_file: in the folder; one token a line, in the order of the ids.
        vocab_size, vocab_sha256: of that file.
        tokenizer_file: the sentencepiece model in the folder, or None.
        lower_case: whether the text was lower-cased.
        max_seq_length: tokens of an example at most, [CLS] and both [SEP] included.
        max_predictions_per_seq: width of the static masks; None if dynamic.
        documents, tokens: in the text, both splits together; a token that went into several examples counts once.
        seed: of the preparation.
        splits: the shards of "train" and of "eval", in order; "eval" may have none.
    """

    folder: str
    splits: dict[str, list[Shard]]

    def path(self, name: str) -> str:
        """Returns the path of a file of the data set."""
        return os.path.join(self.folder, name)

    def examples(self, split: str) -> int:
        """Returns the number of examples of a split."""
        return sum(shard.examples for shard in self.splits[split])


def file_sha256(path: str) -> str:
    """Returns the SHA-256 of a manifest or a vocabulary, in hexadecimal; DataError if it cannot be read."""
    try:
        return hashlib.sha256(read_small(path, max(MAX_BYTES, vocabulary.MAX_BYTES))).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def write_manifest(manifest: Manifest) -> None:
    """Writes the manifest into its folder at once; the same manifest gives the same bytes."""
    path = manifest.path(NAME)
    values = msgspec.to_builtins(manifest)
    content = {"format": FORMAT, **{name: values[name] for name in _Fields.__struct_fields__}}
    with contextlib.suppress(FileNotFoundError):
        os.remove(path + ".partial")
    # "x" follows no symbolic link.
    with open(path + ".partial", "x", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".partial", path)


def read_manifest(folder: str) -> Manifest:
    """Reads and checks the manifest of a folder.

    Args:
        folder: what `--data_dir` names.

    Raises:
        DataError: it is missing, not a manifest, or does not fit the files beside it.
    """
    path = os.path.join(folder, NAME)
    manifest = _from_json(path, folder, _load(path, folder))
    for name in [manifest.vocab_file, *filter(None, [manifest.tokenizer_file])]:
        if not os.path.isfile(_inside(path, folder, name)):
            raise DataError(f"{manifest.path(name)}: no such file, but {path} names it; prepare the data again")
    found = file_sha256(manifest.path(manifest.vocab_file))
    if found != manifest.vocab_sha256:
        raise DataError(
            f"{manifest.path(manifest.vocab_file)}: this is not the vocabulary that the records were made "
            f"with: its SHA-256 begins {found[:12]}, {path} says {manifest.vocab_sha256[:12]}; restore it "
            "or prepare the data again"
        )
    tokens = len(vocabulary.read_vocabulary(manifest.path(manifest.vocab_file), manifest.tokenizer_type))
    if tokens != manifest.vocab_size:
        raise DataError(
            f"{path}: vocab_size is {manifest.vocab_size}, but {manifest.path(manifest.vocab_file)} has {tokens} "
            "tokens; prepare the data again"
        )
    for shard in (shard for shards in manifest.splits.values() for shard in shards):
        shard_path = _inside(path, folder, shard.file)
        try:
            size = os.path.getsize(shard_path)
        except OSError as error:
            raise DataError(
                f"{shard_path}: {error.strerror}: this shard is missing, but {path} names it; restore it or "
                "prepare the data again"
            ) from error
        if size != shard.bytes:
            raise DataError(
                f"{shard_path}: byte {min(size, shard.bytes)}: the shard has {size} bytes, {path} says "
                f"{shard.bytes}; restore it or prepare the data again"
            )
    return manifest


def listed_files(folder: str) -> list[str]:
    """Returns the names of the files that a preparation wrote into a folder, itself excepted, whatever became of them.

    Raises:
        DataError: the folder's manifest.json is missing, or no preparation wrote it.
    """
    path = os.path.join(folder, NAME)
    content = _load(path, folder)
    try:
        shards = [shard["file"] for split in ("train", "eval") for shard in content["splits"][split]]
        names = [name for shard in shards for name in (shard, shard + ".index")]
        names += [content["vocab_file"], *filter(None, [content.get("tokenizer_file")])]
        for name in names:
            _inside(path, folder, name)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a manifest of tftrain.prepare") from error
    return names


def _load(path: str, folder: str) -> Any:
    try:
        return strict_json.parse(read_small(path, MAX_BYTES))
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file; expected a folder that `python -m tftrain.prepare --output_dir={folder}` "
            "has finished"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a manifest of tftrain.prepare") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); prepare the data again") from error


def _inside(path: str, folder: str, name: str) -> str:
    """Returns the path of a name in the folder; DataError if the name leads out of it, by a symbolic link perhaps."""
    if not name or os.path.isabs(name) or os.path.normpath(name) != name or ".." in name.split(os.sep):
        raise DataError(f"{path}: it names the file {strict_json.shown(name)}; expected a name inside {folder}")
    if not name.isprintable():
        raise DataError(f"{path}: it names the file {strict_json.shown(name)}; expected a name of printable characters")
    inside = os.path.join(folder, name)
    if not os.path.realpath(inside).startswith(os.path.join(os.path.realpath(folder), "")):
        raise DataError(
            f"{inside}: a symbolic link leads out of {folder}, and {path} names it; put the file itself there"
        )
    return inside


def _from_json(path: str, folder: str, content: Any) -> Manifest:
    if not isinstance(content, dict) or "format" not in content:
        raise DataError(f"{path}: not a manifest of tftrain.prepare; prepare the data again")
    if content["format"] != FORMAT:
        raise DataError(
            f"{path}: its format is {strict_json.shown(content['format'])}, this version reads {FORMAT}; "
            "prepare the data again"
        )
    del content["format"]
    try:
        fields = strict_json.convert(content, _Fields)
        splits = strict_json.convert(fields.splits, _Splits, "splits")
    except ValueError as error:
        raise DataError(f"{path}: {error}; prepare the data again") from error
    values = msgspec.structs.asdict(fields) | {"splits": msgspec.structs.asdict(splits)}
    manifest = Manifest(folder=folder, **values)
    slots, length = manifest.max_predictions_per_seq, manifest.max_seq_length
    if (manifest.masking == "static") != (slots is not None) or (slots or 0) > length:
        raise DataError(
            f"{path}: max_predictions_per_seq is {slots} with masking {manifest.masking} and max_seq_length {length}; "
            "prepare the data again"
        )
    return manifest
