"""Makes records that another program has written a prepared data set: `--input_records`.

Then they may be a source of a mixture, belong to a phase, or lie at an address. The payloads stay as they are; each
file becomes a shard. Masked records have the features of the original BERT, causal ones max_seq_length + 1 input_ids.
"""

import dataclasses
import os
from collections import Counter

from tftrain.config.prepare import PrepareConfig
from tftrain.data.example import decode
from tftrain.data.manifest import Shard
from tftrain.data.opened import record_sizes
from tftrain.data.records import RecordSet, match_files
from tftrain.files.errors import DataError
from tftrain.prepare.accounting import Accounting
from tftrain.prepare.shards import write_file
from tftrain.prepare.workers import Workers
from tftrain.tokenizer.tokenizer_model import Tokenizer


def adopt(
    config: PrepareConfig, work: str, tokenizer: Tokenizer, workers: Workers
) -> tuple[PrepareConfig, dict[str, list[Shard]], Accounting]:
    """Copies the records into `work`; returns the configuration with their sizes, the shards, and their tokens.

    Raises:
        DataError: a file can't be read, or a record is not like the first one.
    """
    paths = {"train": match_files(config.input_records, "input_records"), "eval": []}
    if config.eval_records:
        paths["eval"] = match_files(config.eval_records, "eval_records")
    if both := set(paths["train"]) & set(paths["eval"]):
        raise DataError(f"--eval_records={config.eval_records}: {min(both)} is one of --input_records too")
    length, slots = record_sizes(paths["train"], config.objective)
    masks = {"masking": "static", "max_predictions_per_seq": slots} if config.objective == "masked" else {}
    config = dataclasses.replace(config, max_seq_length=length, **masks)
    names = [
        (split, path, f"{split}-{number:05d}-of-{len(of_split):05d}.tfrecord")
        for split, of_split in paths.items()
        for number, path in enumerate(map(os.path.abspath, of_split) if config.runner == "beam" else of_split)
    ]
    tasks = [(path, os.path.join(work, name), config, tokenizer) for _, path, name in names]
    splits, whole = {"train": [], "eval": []}, Counter()
    for (split, _, name), counts in zip(names, workers.run("copy records", copy_file, tasks), strict=True):
        splits[split].append(Shard(name, counts["records"], os.path.getsize(os.path.join(work, name))))
        whole.update(counts)
    accounting = Accounting(
        tokens_read=whole["tokens"],
        tokens_in_examples=whole["tokens"],
        unknown_tokens=whole["unknown"],
        examples=whole["records"],
        records=whole["records"],
    )
    return config, splits, accounting


def copy_file(path: str, copy: str, config: PrepareConfig, tokenizer: Tokenizer) -> Counter:
    """Writes the records of a file and their index; returns the numbers of records, tokens and [UNK] in them."""
    records, counts = RecordSet([path]), Counter()
    ids, unknown = len(tokenizer.vocabulary), tokenizer.vocabulary.unknown_id
    slots = config.max_predictions_per_seq
    length = config.max_seq_length + (slots is None)  # A causal record has the last label too.
    # The number of values of each feature in a record, and the largest value.
    limits = {"input_ids": (length, ids - 1)}
    if slots:
        limits |= {"input_mask": (length, 1), "segment_ids": (length, 1), "next_sentence_labels": (1, 1)}
        limits |= {"masked_lm_positions": (slots, length - 1), "masked_lm_ids": (slots, ids - 1)}
        limits |= {"masked_lm_weights": (slots, 1.0)}

    def payloads():
        for place, payload in records.read_all(range(len(records))):
            features = decode(payload, place)
            for name, (width, most) in limits.items():
                values = features.get(name, ())
                if len(values) != width:
                    fault = f"the record has {len(values)} {name}; the first record of all has {width}"
                    raise DataError(f"{place}: {fault}")
                kind = type(most)
                if wrong := [value for value in values if not (0 <= value <= most and isinstance(value, kind))]:
                    fault = f"the record has {wrong[0]} in {name}; expected {kind.__name__}s from 0 to {most}"
                    raise DataError(f"{place}: {fault}")
            tokens = sum(features["input_mask"]) if slots else length
            counts.update(records=1, tokens=tokens, unknown=features["input_ids"].count(unknown))
            yield payload

    write_file(copy, payloads())
    return counts
