"""The manifest of a prepared data set: a JSON file that lists the contents of the folder.

A preparation writes the manifest last. `read_manifest` makes all checks that do not need the records: the shards exist
and have the recorded sizes, and the vocabulary is the one that tokenized the text.
"""

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tftrain.config.mixture import Source
from tftrain.families.bert import NORMALIZATION
from tftrain.files import durable, names, strict_json
from tftrain.files.errors import DataError
from tftrain.files.reading import read_small
from tftrain.tokenizer import vocabulary
from tftrain.tokenizer.roles import of_record
from tftrain.tokenizer.tokenizer_model import Tokenizer
from tftrain.tokenizer.vocabulary import KINDS

NAME = "manifest.json"
FORMAT = 2
# Format 1 lacks the fields that account for tokens.
_READABLE_FORMATS = (1, FORMAT)
MAX_BYTES = 16 << 20
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One TFRecord file, and its size."""

    file: str  # its name in the folder
    examples: Count  # number of its records, the rows of a batch
    bytes: Count
    packed: Count | None = None  # number of the examples in the records, where they are packed; else None


class _Splits(msgspec.Struct, forbid_unknown_fields=True):
    train: list[Shard]
    eval: list[Shard]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of the file, in file order."""

    # "masked": sentence pairs; "causal": sequences in which every next token is predicted. Manifests without this field
    # are of preparations that had no other.
    objective: Literal["masked", "causal"] = "masked"
    # "dynamic": unmasked pairs, which training masks; "static": the standard BERT features, masked; None if causal.
    masking: Literal["dynamic", "static"] | None
    tokenizer_type: Literal[KINDS]
    vocab_file: str  # the name of the vocabulary in the folder, one token a line, in the order of the ids
    vocab_size: Annotated[int, Meta(ge=1, le=vocabulary.MAX_TOKENS)]
    vocab_sha256: str  # SHA-256 of the vocabulary, hexadecimal
    tokenizer_file: str | None  # the name of the sentencepiece model, or of the byte-level BPE, in the folder
    lower_case: bool
    # Whether nonspacing marks were stripped; None or no field: if the text was lower-cased.
    strip_accents: bool | None = None
    # As `words.word_splitter` describes; "none" for "bpe". The default is as that of the objective.
    normalization: Literal[NORMALIZATION, "nfkc", "none"] = "nfkc"
    # Most tokens of an example, with [CLS] and both [SEP]; or the tokens of a sequence, whose record has one more.
    max_seq_length: Annotated[int, Meta(ge=8, le=1 << 16)]
    # Most masked tokens of a static example; None if masking is not static.
    max_predictions_per_seq: Annotated[int, Meta(ge=1, le=1 << 16)] | None
    documents: Count  # in both splits, as are the tokens
    tokens_read: Count
    # As in `tftrain.prepare.accounting`; None in format 1.
    tokens_in_examples: Count | None
    tokens_dropped: dict[str, Count] | None
    unk_share: Annotated[float, Meta(ge=0, le=1)] | None
    max_sequences_per_pack: Annotated[int, Meta(ge=2, le=64)] | None = None  # most examples in a row, if packed
    unreadable_inputs: Count | None = None  # what was left out with --skip_unreadable; None without the flag
    bad_rows: Count | None = None  # what was left out with --skip_bad_rows; None without the flag
    next_sentence: bool | None = None  # False if examples have one text; else None
    # The fields of `Roles`, if they are not those that the usual names of tokens have.
    roles: dict[str, int | None] | None = None
    seed: Count
    splits: _Splits


class Manifest(_Fields, frozen=True, kw_only=True):
    """A prepared data set: its folder, which is not in the file, and the shards of "train" and "eval", in order."""

    folder: str
    splits: dict[str, list[Shard]]
    sources: tuple[tuple[Source, "Manifest"], ...] = ()  # those of a mixture, whose shards are all here, by their paths

    def path(self, name: str) -> str:
        """Returns the path of a file in the folder."""
        return os.path.join(self.folder, name)

    def examples(self, split: str) -> int:
        """Returns the number of records of a split: of examples, or of rows in which examples are packed."""
        return sum(shard.examples for shard in self.splits[split])

    def read_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer in the folder; raises a DataError."""
        tokens = self.read_vocabulary()
        try:
            model = read_small(self.path(self.tokenizer_file), vocabulary.MAX_BYTES) if self.tokenizer_file else None
        except OSError as error:
            raise DataError(str(error)) from error
        return Tokenizer(tokens, self.lower_case, self.normalization, model, self.strip_accents)

    def read_vocabulary(self) -> vocabulary.Vocabulary:
        """Returns the vocabulary in the folder; raises a DataError."""
        roles = None if self.roles is None else of_record(self.roles, self.vocab_size, self.path(NAME))
        return vocabulary.read_vocabulary(self.path(self.vocab_file), self.tokenizer_type, roles)

    def packed_examples(self, split: str) -> int:
        """Returns the number of examples of a split, also where several are in a row."""
        return sum(shard.examples if shard.packed is None else shard.packed for shard in self.splits[split])


def file_sha256(path: str) -> str:
    """Returns the SHA-256 of a manifest or a vocabulary, in hexadecimal; raises DataError if it cannot be read."""
    try:
        return hashlib.sha256(read_small(path, max(MAX_BYTES, vocabulary.MAX_BYTES))).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def write_manifest(manifest: Manifest) -> None:
    """Writes the manifest into its folder atomically. Equal manifests give equal bytes."""
    values = msgspec.to_builtins(manifest)
    content = {"format": FORMAT, **{name: values[name] for name in _Fields.__struct_fields__}}
    for name in ("max_sequences_per_pack", "unreadable_inputs", "bad_rows", "next_sentence", "roles"):
        if content[name] is None:
            del content[name]
    durable.write(Path(manifest.path(NAME)), (json.dumps(content, indent=1) + "\n").encode())


def read_manifest(folder: str, known_vocabulary: str | None = None) -> Manifest:
    """Reads and checks the manifest of a folder, the value of `--data_dir`.

    The vocabulary in the folder is not read if it has the SHA-256 of one that is known.

    Raises:
        DataError: the manifest is missing or invalid, or does not match the files in the folder.
    """
    path, manifest = os.path.join(folder, NAME), load_manifest(folder)
    for name in filter(None, [manifest.vocab_file, manifest.tokenizer_file]):
        if not os.path.isfile(_inside(path, folder, name)):
            raise DataError(f"{manifest.path(name)}: no such file, but {path} names it; prepare the data again")
    remedy = "restore it or prepare the data again"
    if manifest.vocab_sha256 != known_vocabulary:
        _check_vocabulary(manifest, remedy)
    for shard in itertools.chain(*manifest.splits.values()):
        shard_path, said = _inside(path, folder, shard.file), shard.bytes
        try:
            size = os.path.getsize(shard_path)
        except OSError as error:
            reason = f"{error.strerror}: this shard is missing, but {path} names it"
            raise DataError(f"{shard_path}: {reason}; {remedy}") from error
        if size != said:
            reason = f"byte {min(size, said)}: the shard has {size} bytes, {path} says {said}"
            raise DataError(f"{shard_path}: {reason}; {remedy}")
    return manifest


def load_manifest(folder: str) -> Manifest:
    """Reads the manifest of a folder without a look at the other files; raises DataError."""
    path = os.path.join(folder, NAME)
    content = _load(path, folder)
    if not isinstance(content, dict) or "format" not in content:
        raise DataError(f"{path}: not a manifest of tftrain.prepare; prepare the data again")
    file_format = content.pop("format")
    if isinstance(file_format, bool) or file_format not in _READABLE_FORMATS:
        difference = f"its format is {strict_json.shown(file_format)}, this version reads {FORMAT}"
        raise DataError(f"{path}: {difference}; prepare the data again")
    if file_format == 1 and "tokens" in content:
        content |= {"tokens_read": content.pop("tokens")}
        content |= {"tokens_in_examples": None, "tokens_dropped": None, "unk_share": None}
    try:
        fields = strict_json.convert(content, _Fields)
    except ValueError as error:
        raise DataError(f"{path}: {error}; prepare the data again") from error
    values = msgspec.structs.asdict(fields) | {"splits": msgspec.structs.asdict(fields.splits)}
    manifest = Manifest(folder=folder, **values)
    if fault := _contradiction(manifest):
        raise DataError(f"{path}: {fault}; prepare the data again")
    return manifest


def _check_vocabulary(manifest: Manifest, remedy: str) -> None:
    """Raises DataError unless the vocabulary in the folder is the one that the manifest names."""
    path, vocab_path = manifest.path(NAME), manifest.path(manifest.vocab_file)
    sha256 = file_sha256(vocab_path)
    if sha256 != manifest.vocab_sha256:
        raise DataError(
            f"{vocab_path}: this is not the vocabulary that the records were made with: its SHA-256 begins "
            f"{sha256[:12]}, {path} says {manifest.vocab_sha256[:12]}; {remedy}"
        )
    tokens, said = len(manifest.read_vocabulary()), manifest.vocab_size
    if tokens != said:
        raise DataError(f"{path}: vocab_size is {said}, but {vocab_path} has {tokens} tokens; prepare the data again")


def listed_files(folder: str) -> list[str]:
    """Returns the names of the files that the manifest of a folder lists, whether they still exist or not.

    Raises:
        DataError: manifest.json is missing, or tftrain.prepare did not write it.
    """
    path = os.path.join(folder, NAME)
    content = _load(path, folder)
    try:
        shards = [shard["file"] for split in ("train", "eval") for shard in content["splits"][split]]
        listed = [name for shard in shards for name in (shard, shard + ".index")]
        listed += filter(None, [content["vocab_file"], content.get("tokenizer_file")])
        for name in listed:
            _inside(path, folder, name)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a manifest of tftrain.prepare") from error
    return listed


def _load(path: str, folder: str) -> Any:
    try:
        return strict_json.parse(read_small(path, MAX_BYTES))
    except FileNotFoundError as error:
        expected = f"expected a folder that `python -m tftrain.prepare --output_dir={folder}` has finished"
        raise DataError(f"{path}: no such file; {expected}") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a manifest of tftrain.prepare") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); prepare the data again") from error


def _inside(path: str, folder: str, name: str) -> str:
    """Returns the path of a file in the folder; raises a DataError as `names.inside`."""
    try:
        return str(names.inside(folder, name))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _contradiction(manifest: Manifest) -> str | None:
    """Returns what in a manifest contradicts what, if anything does."""
    masking, most = manifest.masking, manifest.max_sequences_per_pack
    slots, length = manifest.max_predictions_per_seq, manifest.max_seq_length
    if (manifest.objective == "masked") != (masking is not None):
        return f"masking is {strict_json.shown(masking)} with objective {manifest.objective}"
    packed = {shard.packed is not None for shard in itertools.chain(*manifest.splits.values())}
    if packed - {most is not None}:
        return "some of its shards are packed and some are not"
    if most and masking != "dynamic":
        return f"max_sequences_per_pack is {most} with masking {strict_json.shown(masking)}; expected dynamic"
    if (masking == "static") != (slots is not None) or (slots or 0) > length:
        return f"max_predictions_per_seq is {slots} with masking {masking} and max_seq_length {length}"
    return None
