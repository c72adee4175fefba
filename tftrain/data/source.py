"""Opens the source of examples that the flags select: prepared data, other records, or synthetic data."""

from tftrain.config.data import DataConfig
from tftrain.config.data_sizes import Sizes, synthetic
from tftrain.data.causal_source import CausalSource, SyntheticSequences
from tftrain.data.example_source import Batch, ExampleSource
from tftrain.data.manifest import Manifest
from tftrain.data.masked_source import DynamicSource, PackedSource, StaticSource, SyntheticPairs
from tftrain.data.masking import Masking, stream_key
from tftrain.data.mixture import Mixture, read_prepared
from tftrain.data.objectives import OBJECTIVES
from tftrain.data.preflight import check_objective, record_sizes
from tftrain.data.records import RecordSet, match_files
from tftrain.files.errors import DataError
from tftrain.tokenizer.vocabulary import read_vocabulary

__all__ = ["Batch", "ExampleSource", "open_source"]

# By objective, the sources of synthetic data, and of records that another program wrote.
_SYNTHETIC = {"masked": SyntheticPairs, "causal": SyntheticSequences}
_RECORDS = {"masked": StaticSource, "causal": CausalSource}


def open_source(data: DataConfig, split: str, vocab_size: int, seed: int, objective: str = "masked") -> ExampleSource:
    """Opens the source of a split, "train" or "eval", that the flags select.

    Args:
        data: data_dir, mix, train_files and eval_files, or synthetic_data select the source.
        vocab_size: rows of the embedding. Reading a record with a token id of vocab_size or more is an error.
        seed: seed of the masks, and of synthetic data.
        objective: "masked" (see `masked_source` for the features of a batch) or "causal" (see `causal_source`).

    Raises:
        DataError: files are missing or damaged, the split is empty, or the data has another objective.
    """
    if data.synthetic_data:
        return _SYNTHETIC[objective](split, synthetic(data, vocab_size, objective), seed)
    if data.data_dir or data.mix:
        manifest = read_prepared(data)
        source = _open_prepared(manifest, data, split, vocab_size, seed, objective)
        if data.mix:
            source.mixture = Mixture({each: own.examples(split) for each, own in manifest.sources})
        return source
    pattern, flag = (data.train_files, "train_files") if split == "train" else (data.eval_files, "eval_files")
    if pattern is None:
        raise DataError(f"--{flag} is not given; expected a glob of TFRecords for the {split} split")
    paths = match_files(pattern, flag)
    sizes = Sizes(vocab_size, *record_sizes(paths, objective))
    return _RECORDS[objective](RecordSet(paths), sizes)


def _open_prepared(
    manifest: Manifest, data: DataConfig, split: str, vocab_size: int, seed: int, objective: str
) -> ExampleSource:
    check_objective(manifest, objective)
    shards = manifest.splits[split]
    records = RecordSet([manifest.path(shard.file) for shard in shards])
    for shard, count in zip(shards, records.counts, strict=True):
        if count != shard.examples:
            fault = f"it holds {count} records, the manifest says {shard.examples}"
            raise DataError(f"{manifest.path(shard.file)}: {fault}; remove its .index, or prepare the data again")
    if not len(records):
        remedy = "prepare it from more text, or with a larger --eval_fraction"
        raise DataError(f"{manifest.folder}: its {split} split is empty; {remedy}")
    sizes = Sizes(vocab_size, manifest.max_seq_length, OBJECTIVES[objective].predictions(manifest, data))
    vocabulary = read_vocabulary(manifest.path(manifest.vocab_file), manifest.tokenizer_type)
    if objective == "causal":
        return CausalSource(records, sizes, vocabulary.end_id if data.document_mask else None)
    if manifest.masking == "static":
        return StaticSource(records, sizes)
    key = stream_key(seed, f"masking {split}")
    masking = Masking(vocabulary, *sizes[1:], data.masked_lm_prob, data.whole_word_masking, key)
    if manifest.max_sequences_per_pack:
        examples = manifest.packed_examples(split)
        return PackedSource(records, masking, vocab_size, manifest.max_sequences_per_pack, examples)
    return DynamicSource(records, masking, vocab_size)
