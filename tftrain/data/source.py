"""Opens the source of examples that the flags select: prepared data, other records, or synthetic data."""

from tftrain.data.causal_source import CausalSource, SyntheticSequences
from tftrain.data.example_source import ExampleSource
from tftrain.data.masked_source import DynamicSource, PackedSource, StaticSource, SyntheticPairs
from tftrain.data.masking import Masking, stream_key
from tftrain.data.mixture import Mixture
from tftrain.data.opened import OpenedData, Synthetic
from tftrain.data.prepared import Prepared
from tftrain.data.records import RecordSet
from tftrain.data.sizes import Sizes
from tftrain.files.errors import DataError

# By objective, the sources of synthetic data, and of records that another program wrote.
_SYNTHETIC = {"masked": SyntheticPairs, "causal": SyntheticSequences}
_RECORDS = {"masked": StaticSource, "causal": CausalSource}


def open_source(data: OpenedData, split: str, seed: int) -> ExampleSource:
    """Opens the source of a split, "train" or "eval"; features are as `masked_source` or `causal_source` says.

    Args:
        data: the opened data, which has the split. Reading a record with a token id of its vocabulary's size or more is
            an error.
        seed: seed of the masks, and of synthetic data.

    Raises:
        DataError: files are missing or damaged, or the data has another objective.
    """
    objective = data.model.objective
    if isinstance(data, Synthetic):
        return _SYNTHETIC[objective](split, data.sizes, seed)
    if isinstance(data, Prepared):
        source = _open_prepared(data, split, seed)
        if sources := data.manifest.sources:
            source.mixture = Mixture({each: manifest.examples(split) for each, manifest in sources})
        return source
    if getattr(data.settings, flag := f"{split}_files") is None:
        raise DataError(f"--{flag} is not given; expected a glob of TFRecords for the {split} split")
    sizes = Sizes(data.model.vocab_size, *data.record_sizes(flag))
    return _RECORDS[objective](RecordSet(data.paths(flag)), sizes)


def _open_prepared(data: Prepared, split: str, seed: int) -> ExampleSource:
    sizes, settings, manifest = data.sizes, data.settings, data.manifest
    shards = manifest.splits[split]
    records = RecordSet([manifest.path(shard.file) for shard in shards])
    for shard, count in zip(shards, records.counts, strict=True):
        if count != shard.examples:
            fault = f"it holds {count} records, the manifest says {shard.examples}"
            raise DataError(f"{manifest.path(shard.file)}: {fault}; remove its .index, or prepare the data again")
    if manifest.objective == "causal":
        return CausalSource(records, sizes, data.tokenizer.vocabulary.end_id if settings.document_mask else None)
    if manifest.masking == "static":
        return StaticSource(records, sizes)
    key = stream_key(seed, f"masking {split}")
    masking = Masking(data.tokenizer.vocabulary, *sizes[1:], settings.masked_lm_prob, settings.whole_word_masking, key)
    if manifest.max_sequences_per_pack:
        examples = manifest.packed_examples(split)
        return PackedSource(records, masking, sizes.vocab_size, manifest.max_sequences_per_pack, examples)
    return DynamicSource(records, masking, sizes.vocab_size)
