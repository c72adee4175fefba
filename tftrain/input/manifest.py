"""The manifest of a prepared data set: a JSON file that lists the contents of the folder.

A preparation writes the manifest last. `read_manifest` makes all checks that do not need the records: the shards exist
and have the recorded sizes, and the vocabulary is the one that tokenized the text.
"""

import contextlib
import hashlib
import json
import os
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tftrain.host import strict_json
from tftrain.host.files import read_small
from tftrain.input import vocabulary
from tftrain.input.errors import DataError

NAME = "manifest.json"
FORMAT = 2
# Format 1 lacks the fields that account for tokens.
_READABLE_FORMATS = (1, FORMAT)
MAX_BYTES = 16 << 20
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One TFRecord file.

    Attributes:
        file: its name in the folder.
        examples: number of its records, the rows of a batch.
        bytes: its size.
        packed: number of the examples in the records, where they are packed; else None.
    """

    file: str
    examples: Count
    bytes: Count
    packed: Count | None = None


class _Splits(msgspec.Struct, forbid_unknown_fields=True):
    train: list[Shard]
    eval: list[Shard]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of the file, in file order. `Manifest` describes them."""

    # Manifests without this field are of preparations that had no other.
    objective: Literal["masked", "causal"] = "masked"
    masking: Literal["dynamic", "static"] | None
    tokenizer_type: Literal["wordpiece", "sentencepiece", "bpe"]
    vocab_file: str
    vocab_size: Annotated[int, Meta(ge=1, le=vocabulary.MAX_TOKENS)]
    vocab_sha256: str
    tokenizer_file: str | None
    lower_case: bool
    # Manifests without this field are of preparations that stripped accents where they lower-cased.
    strip_accents: bool | None = None
    # As for the objective.
    normalization: Literal["bert", "nfkc", "none"] = "nfkc"
    max_seq_length: Annotated[int, Meta(ge=8, le=1 << 16)]
    max_predictions_per_seq: Annotated[int, Meta(ge=1, le=1 << 16)] | None
    documents: Count
    tokens_read: Count
    tokens_in_examples: Count | None
    tokens_dropped: dict[str, Count] | None
    unk_share: Annotated[float, Meta(ge=0, le=1)] | None
    max_sequences_per_pack: Annotated[int, Meta(ge=2, le=64)] | None = None
    unreadable_inputs: Count | None = None
    # Manifests without this field are of preparations of two texts.
    next_sentence: bool | None = None
    seed: Count
    splits: dict[str, Any]


class Manifest(_Fields, frozen=True, kw_only=True):
    """A prepared data set.

    Attributes:
        folder: the folder of the manifest. It is not a field of the file.
        objective: "masked": sentence pairs; "causal": sequences in which every next token is predicted.
        masking: "dynamic": unmasked pairs, which training masks; "static": the standard BERT features, masked. None if
            the objective is "causal".
        tokenizer_type: "wordpiece", "sentencepiece" or "bpe".
        vocab_file: the name of the vocabulary in the folder. It has one token a line, in the order of the ids.
        vocab_size, vocab_sha256: number of tokens and SHA-256 (hexadecimal) of the vocabulary.
        tokenizer_file: the name of the sentencepiece model, or of the byte-level BPE, in the folder; or None.
        lower_case: whether the text was lower-cased.
        strip_accents: whether nonspacing marks were stripped; None: if the text was lower-cased.
        normalization: "bert" or "nfkc", as `tokenization.word_splitter` describes them; "none" for "bpe".
        max_seq_length: maximum number of tokens of an example, including [CLS] and both [SEP]; or the number of tokens
            of a sequence, whose record has one more.
        max_predictions_per_seq: maximum number of masked tokens of a static example; None if masking is not static.
        documents, tokens_read: numbers of documents and tokens in the text of both splits.
        tokens_in_examples: tokens of the text that occur in an example. A token counts once, even if several examples
            contain it. It is None in manifests of format 1, as are the next two fields.
        tokens_dropped: numbers of the other tokens, by reason.
        unk_share: share of [UNK] in the tokens in examples.
        max_sequences_per_pack: maximum number of examples in a row, where they are packed; else None.
        next_sentence: False if examples have one text; else None.
        unreadable_inputs: number of files and folders that were left out with --skip_unreadable; None without the flag.
        seed: seed of the preparation.
        splits: the shards of "train" and "eval", in order. "eval" may be empty.
    """

    folder: str
    splits: dict[str, list[Shard]]

    def path(self, name: str) -> str:
        """Returns the path of a file in the folder."""
        return os.path.join(self.folder, name)

    def examples(self, split: str) -> int:
        """Returns the number of records of a split: of examples, or of rows in which examples are packed."""
        return sum(shard.examples for shard in self.splits[split])

    def packed_examples(self, split: str) -> int:
        """Returns the number of examples of a split, also where several are in a row."""
        return sum(shard.examples if shard.packed is None else shard.packed for shard in self.splits[split])


def file_sha256(path: str) -> str:
    """Returns the SHA-256 of a manifest or a vocabulary, in hexadecimal.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return hashlib.sha256(read_small(path, max(MAX_BYTES, vocabulary.MAX_BYTES))).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def write_manifest(manifest: Manifest) -> None:
    """Writes the manifest into its folder atomically. Equal manifests give equal bytes."""
    path = manifest.path(NAME)
    values = msgspec.to_builtins(manifest)
    content = {"format": FORMAT, **{name: values[name] for name in _Fields.__struct_fields__}}
    for name in ("max_sequences_per_pack", "unreadable_inputs", "next_sentence"):
        if content[name] is None:
            del content[name]
    with contextlib.suppress(FileNotFoundError):
        os.remove(path + ".partial")
    # The mode "x" does not follow a symbolic link.
    with open(path + ".partial", "x", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".partial", path)


def read_manifest(folder: str) -> Manifest:
    """Reads and checks the manifest of a folder.

    Args:
        folder: the value of `--data_dir`.

    Raises:
        DataError: the manifest is missing or invalid, or does not match the files in the folder.
    """
    path = os.path.join(folder, NAME)
    manifest = _from_json(path, folder, _load(path, folder))
    for name in [manifest.vocab_file, *filter(None, [manifest.tokenizer_file])]:
        if not os.path.isfile(_inside(path, folder, name)):
            raise DataError(f"{manifest.path(name)}: no such file, but {path} names it; prepare the data again")
    sha256 = file_sha256(manifest.path(manifest.vocab_file))
    if sha256 != manifest.vocab_sha256:
        raise DataError(
            f"{manifest.path(manifest.vocab_file)}: this is not the vocabulary that the records were made "
            f"with: its SHA-256 begins {sha256[:12]}, {path} says {manifest.vocab_sha256[:12]}; restore it "
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
    """Returns the names of the files that the manifest of a folder lists, whether they still exist or not.

    The manifest itself is not in the list.

    Raises:
        DataError: manifest.json is missing, or tftrain.prepare did not write it.
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
    """Returns the path of a file in the folder.

    Raises:
        DataError: the name is not printable, or the path leaves the folder, for instance through a symbolic link.
    """
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
    file_format = content.pop("format")
    if isinstance(file_format, bool) or file_format not in _READABLE_FORMATS:
        raise DataError(
            f"{path}: its format is {strict_json.shown(file_format)}, this version reads {FORMAT}; "
            "prepare the data again"
        )
    if file_format == 1 and "tokens" in content:
        content |= {"tokens_read": content.pop("tokens")}
        content |= {"tokens_in_examples": None, "tokens_dropped": None, "unk_share": None}
    try:
        fields = strict_json.convert(content, _Fields)
        splits = strict_json.convert(fields.splits, _Splits, "splits")
    except ValueError as error:
        raise DataError(f"{path}: {error}; prepare the data again") from error
    values = msgspec.structs.asdict(fields) | {"splits": msgspec.structs.asdict(splits)}
    manifest = Manifest(folder=folder, **values)
    if (manifest.objective == "masked") != (manifest.masking is not None):
        raise DataError(
            f"{path}: masking is {strict_json.shown(manifest.masking)} with objective {manifest.objective}; "
            "prepare the data again"
        )
    packed = {shard.packed is not None for shards in manifest.splits.values() for shard in shards}
    if packed - {manifest.max_sequences_per_pack is not None}:
        raise DataError(f"{path}: some of its shards are packed and some are not; prepare the data again")
    if manifest.max_sequences_per_pack and manifest.masking != "dynamic":
        raise DataError(
            f"{path}: max_sequences_per_pack is {manifest.max_sequences_per_pack} with masking "
            f"{strict_json.shown(manifest.masking)}; expected dynamic; prepare the data again"
        )
    slots, length = manifest.max_predictions_per_seq, manifest.max_seq_length
    if (manifest.masking == "static") != (slots is not None) or (slots or 0) > length:
        raise DataError(
            f"{path}: max_predictions_per_seq is {slots} with masking {manifest.masking} and max_seq_length {length}; "
            "prepare the data again"
        )
    return manifest
