"""A record with wrong features is one line that names its file, its first byte and the fault."""

import itertools
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.data.test_pipeline import source_of
from tests.kit import corpora
from tftrain.config.data import DataConfig
from tftrain.data.manifest import read_manifest
from tftrain.data.pipeline import eval_batches
from tftrain.data.records import write_records
from tftrain.files.errors import data_error

NO_WEIGHT = "masked_lm_weights is not a number from 0 to 1"
# By kind a good record, and changes of it with words of the fault.
RECORDS = {
    "standard": (
        corpora.standard_example(np.random.default_rng(0))[1],
        [
            ({"masked_lm_weights": None}, "masked_lm_weights"),
            ({"masked_lm_weights": [1, 1, 1]}, "masked_lm_weights"),
            ({"next_sentence_labels": [2]}, "next_sentence_labels is neither 0 nor 1"),
            ({"segment_ids": [0] * 15 + [2]}, "a token type is negative or too large; expected token types below 2"),
            ({"input_ids": [5] * 15 + [2**32 + 5]}, "--vocab_size=200"),
            ({"masked_lm_ids": [7, -(2**63), 0]}, "--vocab_size=200"),
            ({"masked_lm_positions": [1, 2**32, 0]}, "masked position"),
            ({"input_mask": [1] * 15 + [2]}, "input_mask is neither 0 nor 1"),
            ({"masked_lm_weights": [1.0, float("nan"), 0.0]}, NO_WEIGHT),
            ({"masked_lm_weights": [1.0, float("inf"), 0.0]}, NO_WEIGHT),
            ({"input_ids": [5] * 100_000}, "input_ids"),
        ],
    ),
    "prepared": (
        {"input_ids": [2, 9, 9, 3, 9, 3], "second_segment_start": [4], "next_sentence_labels": [0]},
        [
            ({"input_ids": [2, 2**32 + 5, 3]}, "--vocab_size=200"),
            ({"input_ids": [5] * 1_000_000}, "more than --max_seq_length=32"),
            ({"input_ids": None}, "no tokens"),
            ({"second_segment_start": [2**40]}, "second_segment_start is not a place"),
            ({"second_segment_start": [1, 2]}, "second_segment_start"),
            ({"next_sentence_labels": [2**32]}, "next_sentence_labels is neither 0 nor 1"),
        ],
    ),
    "prepared_packed": (
        {
            "input_ids": [5] * 20,
            "sequence_lengths": [10, 10],
            "second_segment_start": [4, 10],
            "next_sentence_labels": [0, 1],
        },
        [
            ({"sequence_lengths": [5]}, "the same number of each, from 1 to 3"),
            ({"sequence_lengths": None}, "the same number of each"),
            ({"sequence_lengths": [9, 12]}, "sequence_lengths are not those"),
            ({"sequence_lengths": [-1, 21]}, "sequence_lengths are not those"),
            ({"second_segment_start": [11, 2]}, "is not a place"),
            ({"next_sentence_labels": [0, 2]}, "is neither 0 nor 1"),
            ({"input_ids": [5] * 19 + [2**32 + 5]}, "--vocab_size=200"),
            ({"input_ids": [5] * 33, "sequence_lengths": [16, 17]}, "more than --max_seq_length=32"),
        ],
    ),
    "causal": (
        {"input_ids": [5] * 17},
        [
            ({"input_ids": [5] * 16}, "the record must have 17 input_ids: --max_seq_length=16 inputs and a label"),
            ({"input_ids": None}, "the record must have 17 input_ids"),
            ({"input_ids": [5] * 16 + [300]}, "--vocab_size=300"),
            ({"input_ids": [5] * 16 + [2**32 + 5]}, "--vocab_size=300"),
        ],
    ),
}


def prepared_with(folder, payloads):
    """Gives a prepared data set other training records; returns the path of their file."""
    shard = read_manifest(str(folder)).splits["train"][0].file
    write_records(str(folder / shard), payloads)
    content = json.loads((folder / "manifest.json").read_text())
    packed = {"packed": 2 * len(payloads)} if content.get("max_sequences_per_pack") else {}
    size = os.path.getsize(folder / shard)
    content["splits"]["train"] = [{"file": shard, "examples": len(payloads), "bytes": size, **packed}]
    (folder / "manifest.json").write_text(json.dumps(content))
    return str(folder / shard)


@pytest.mark.parametrize("kind", RECORDS)
def test_each_wrong_record_is_named_with_its_fault(request, tmp_path, kind):
    good, wrong = RECORDS[kind]
    examples = [{name: value for name, value in (good | change).items() if value is not None} for change, _ in wrong]
    payloads = [*itertools.chain(*((corpora.serialize(good), corpora.serialize(bad)) for bad in examples))]
    if kind.startswith("prepared"):
        shutil.copytree(request.getfixturevalue(kind), tmp_path, dirs_exist_ok=True)
        path, data = prepared_with(tmp_path, payloads), DataConfig(data_dir=str(tmp_path))
    else:
        path = corpora.write_tfrecords(tmp_path / "shard", payloads)
        data = DataConfig(train_files=path)
    begins = itertools.accumulate((len(each) + 16 for each in payloads), initial=0)
    batches = iter(eval_batches(source_of(data, objective="causal" if kind == "causal" else None), data, 2, 0, 2))
    for (_, words), begin in zip(wrong, itertools.islice(begins, 1, None, 2), strict=False):
        with pytest.raises(tf.errors.OpError) as caught:
            next(batches)
        fault = str(data_error(caught.value))
        assert fault.startswith(f"{path}: byte {begin}: ")
        assert words in fault
        assert "\n" not in fault
