"""Prepared data, opened: one folder that tftrain.prepare wrote, or the mixture of several."""

import functools
import os
from collections.abc import Iterable

import msgspec

from tftrain import families
from tftrain.config import cudnn, length_choice
from tftrain.config.data import DataConfig
from tftrain.config.fields import Problem, refused
from tftrain.config.model import ModelConfig
from tftrain.data.manifest import NAME, Manifest, file_sha256, read_manifest
from tftrain.data.mirror import local_folder
from tftrain.data.mixture import read_sources
from tftrain.data.opened import OpenedData, RecordFiles, Synthetic, held_out_problems
from tftrain.data.sizes import Sizes
from tftrain.files import addresses
from tftrain.files.errors import DataError
from tftrain.tokenizer.tokenizer_model import Tokenizer

# What must not differ between the phases of a run, and between the sources of a mixture.
ONE_VOCABULARY = ("objective", "vocab_sha256", "normalization", "lower_case", "strip_accents")
_SIZES = ("max_seq_length", "masking", "max_predictions_per_seq", "max_sequences_per_pack", "next_sentence")
_ALIKE = (*ONE_VOCABULARY, *_SIZES)


class Prepared(OpenedData):
    """A folder that tftrain.prepare wrote, or a mixture of several.

    It is identified by its vocabulary and its manifest, which lists the shards and their sizes.
    """

    @functools.cached_property
    def manifest(self) -> Manifest:
        """The manifest; that of a mixture has the shards of all sources, and their manifests.

        Raises:
            DataError: a manifest can't be used, a source has no training data, or sources do not fit together.
        """
        data = self.settings
        if not data.mix:
            return read_manifest(local_folder(data.data_dir, data.cache))
        sources = read_sources(data)
        folders = addresses.in_parallel(lambda source: local_folder(source.path, data.cache), sources)
        first = read_manifest(folders[0])
        manifests = [first, *(read_manifest(folder, first.vocab_sha256) for folder in folders[1:])]
        for source, manifest in zip(sources, manifests, strict=True):
            if fault := difference(first, manifest):
                raise DataError(f"{source.name} and {sources[0].name} do not fit together: {source.path} has {fault}")
            if not manifest.examples("train"):
                raise DataError(f"{source.name}: the train split of {source.path} is empty; leave this source out")
        splits = {
            split: [
                msgspec.structs.replace(shard, file=os.path.abspath(manifest.path(shard.file)))
                for manifest in manifests
                for shard in manifest.splits[split]
            ]
            for split in first.splits
        }
        return msgspec.structs.replace(first, splits=splits, sources=tuple(zip(sources, manifests, strict=True)))

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that has made the data; raises a DataError."""
        return self.manifest.read_tokenizer()

    @property
    def sizes(self) -> Sizes:
        """The sizes that flags set, else those of the manifest."""
        if fault := self._other_objective():
            raise DataError(f"{self.manifest.folder}: {fault}")
        slots = self.objective.predictions(self.manifest, self.settings)
        return Sizes(self.model.vocab_size or self.manifest.vocab_size, self.manifest.max_seq_length, slots)

    @property
    def identity(self) -> dict[str, str]:
        """Vocabulary, and manifests."""
        manifest = self.manifest
        vocabulary = {"the vocabulary": f"{manifest.vocab_size} tokens with SHA-256 {manifest.vocab_sha256[:16]}"}
        if not manifest.sources:
            return vocabulary | {f"{NAME} of the data": f"SHA-256 {file_sha256(manifest.path(NAME))[:16]}"}
        return vocabulary | {
            f"the source {source.name}": f"{source.share:.6f}, SHA-256 {file_sha256(each.path(NAME))[:16]}"
            for source, each in manifest.sources
        }

    @property
    def has_held_out(self) -> bool:
        """Whether the held-out split has records."""
        return self.manifest.examples("eval") > 0

    @property
    def is_packed(self) -> bool:
        """Whether the manifest names a largest number of examples in a row."""
        return self.manifest.max_sequences_per_pack is not None

    def _other_objective(self) -> str:
        wanted, prepared = self.model.objective, self.manifest.objective
        if wanted == prepared:
            return ""
        return (
            f"the data was prepared with --objective={prepared}, but --model_family={families.listed(wanted)} trains "
            f"on --objective={wanted}; prepare the text with that, or use --model_family={families.listed(prepared)}"
        )

    def _problems(self, mode: str, eval_every: int) -> list[Problem]:
        data, model, faults = self.settings, self.model, []
        flag = "mix" if data.mix else "data_dir"
        try:
            manifest = self.manifest
        except DataError as error:
            return [refused(data, flag, str(error))]
        if fault := self._other_objective():
            return [refused(data, flag, fault)]
        if manifest.next_sentence is False and model.next_sentence:
            expected = "expected false: the data was prepared with --next_sentence=false, so its examples have one text"
            faults.append(Problem("next_sentence", True, expected))
        folder, length, most = manifest.folder, manifest.max_seq_length, manifest.max_sequences_per_pack or 0
        if (model.vocab_size or manifest.vocab_size) < manifest.vocab_size:
            expected = f"remove this flag, or give at least the {manifest.vocab_size} of the vocabulary in {folder}"
            faults.append(refused(model, "vocab_size", expected))
        faults += self._length_problems(length, folder)
        faults += length_choice.problems(data.seq_length_buckets, length, 1)
        if data.seq_length_buckets != length_choice.NONE and most:
            expected = f"expected none: the rows of {folder} are packed, so they are full"
            faults.append(refused(data, "seq_length_buckets", expected))
        faults += cudnn.check_packed_rows(model, folder) if most else []
        if manifest.examples("train") == 0 and mode == "train":
            faults.append(refused(data, flag, "its train split is empty; prepare it from more text"))
        if not self.has_held_out:
            reason = "its eval split is empty; prepare it from more text, or with a larger --eval_fraction"
            missing = f"a held-out split in {getattr(data, flag)}"
            faults += held_out_problems(mode, eval_every, refused(data, flag, reason), missing)
        return faults + self.objective.prepared_problems(data, manifest)


def open_data(data: DataConfig, model: ModelConfig) -> OpenedData:
    """Returns the data that the flags name; nothing is read yet."""
    kind = Synthetic if data.synthetic_data else RecordFiles if data.train_files else Prepared
    return kind(data, model)


def difference(first: Manifest, other: Manifest, names: Iterable[str] = _ALIKE) -> str | None:
    """Returns which of `names` another manifest has not as the first, by default what can't be mixed; or None."""
    for name in names:
        one, two = getattr(first, name), getattr(other, name)
        if one != two:
            flag = "vocab_file" if name == "vocab_sha256" else name
            return f"{name} {two}, {first.folder} has {one}; prepare both with the same --{flag}"
    return None
