"""Batches: every example once over all ranks, the same for every layout and after a resume; errors with a place."""

import dataclasses
import itertools
import json
import os
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import corpora
from tests.kit.data_sets import open_source
from tests.prepare.test_prepare import examples
from tftrain.config.data import DataConfig
from tftrain.data.example_source import ExampleSource
from tftrain.data.manifest import read_manifest
from tftrain.data.pipeline import eval_batches, train_batches
from tftrain.files.errors import DataError, data_error

SEED = 5
KEYS = {"input_ids", "input_mask", "segment_ids", "next_sentence_labels", "example_weights"}
KEYS |= {"masked_lm_positions", "masked_lm_ids", "masked_lm_weights"}
PACKED_KEYS = KEYS | {"sequence_ids", "position_ids", "sequence_starts", "sequence_weights"}


def joined(dataset, batches=None):
    taken = list((dataset if batches is None else dataset.take(batches)).as_numpy_iterator())
    return {name: np.concatenate([batch[name] for batch in taken]) for name in taken[0]}


def same(one, other):
    assert one.keys() == other.keys()
    assert one.keys() in (KEYS, PACKED_KEYS, {"input_ids", "labels", "example_weights"})
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module", params=["dynamic", "packed", "causal", "standard", "synthetic"])
def data(request, tmp_path_factory):
    if request.param == "synthetic":
        return DataConfig(synthetic_data=True, max_seq_length=16)
    if request.param == "standard":
        rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("standard")
        for number in range(3):
            payloads = [corpora.standard_example(rng)[0] for _ in range(7)]
            corpora.write_tfrecords(folder / f"{number}.tfrecord", payloads)
        pattern = str(folder / "*.tfrecord")
        return DataConfig(train_files=pattern, eval_files=pattern)
    fixture = {"dynamic": "prepared"}.get(request.param, f"prepared_{request.param}")
    return DataConfig(data_dir=request.getfixturevalue(fixture))


def source_of(data, split="train", objective=None):
    objective = objective or (read_manifest(data.data_dir).objective if data.data_dir else "masked")
    return open_source(data, split, 300 if objective == "causal" else 200, SEED, objective)


@pytest.fixture(scope="module")
def whole(data):
    """Batches of 6 samples, of which one rank reads all: the dataset, and the first of them."""
    dataset = train_batches(source_of(data), data, SEED, 0, 6, 0, 6)
    return dataset, list(dataset.take(20).as_numpy_iterator())


def test_batches_have_static_shapes_and_the_standard_types(data, whole):
    source, spec = source_of(data), whole[0].element_spec
    length, slots = source.max_seq_length, getattr(source, "max_predictions_per_seq", None)
    shapes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (6, length))
    shapes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), (6, slots))
    shapes |= dict.fromkeys(("next_sentence_labels", "example_weights"), (6,))
    if "sequence_ids" in spec:
        shapes |= dict.fromkeys(("sequence_ids", "position_ids"), (6, length))
        shapes |= dict.fromkeys(("sequence_starts", "sequence_weights", "next_sentence_labels"), (6, 3))
    if "labels" in spec:
        shapes = dict.fromkeys(("input_ids", "labels"), (6, length)) | {"example_weights": (6,)}
    floats = {"masked_lm_weights", "example_weights", "sequence_weights"}
    assert {name: tuple(value.shape) for name, value in spec.items()} == shapes
    assert all(value.dtype == (tf.float32 if name in floats else tf.int32) for name, value in spec.items())


def test_slices_of_ranks_and_any_readers_are_the_whole_batches(data, whole):
    source, parts = source_of(data), []
    for share, readers in (((0, 2), 1), ((2, 6), 4)):
        read = train_batches(source, dataclasses.replace(data, data_readers=readers), SEED, 0, 6, *share)
        parts.append(list(read.take(9).as_numpy_iterator()))
    for batch, *slices in zip(whole[1], *parts, strict=False):
        same(batch, {name: np.concatenate([part[name] for part in slices]) for name in batch})


def test_resumed_run_sees_what_the_uninterrupted_one_would(data, whole):
    # Another batch size from there on, as a batch ramp has it.
    resumed = joined(train_batches(source_of(data), data, SEED, 6 * 9, 3, 0, 3), 22)
    same({name: np.concatenate([batch[name] for batch in whole[1][9:]]) for name in resumed}, resumed)


def text_of(batch):
    """Returns the unmasked token ids, without padding, of each row."""
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    return [row[mask > 0].tolist() for row, mask in zip(ids, batch["input_mask"], strict=True)]


def test_standard_records_are_consumed_unchanged(tmp_path):
    rng = np.random.default_rng(3)
    made = [corpora.standard_example(rng) for _ in range(9)]
    path = corpora.write_tfrecords(tmp_path / "bert.tfrecord", [payload for payload, _ in made])
    data = DataConfig(train_files=path, eval_files=path)
    source = source_of(data, "eval")
    assert (source.num_examples, source.max_seq_length, source.max_predictions_per_seq) == (9, 16, 3)
    batch = joined(eval_batches(source, data, 3, 0, 3))
    for row, (_, features) in enumerate(made):
        for name, values in features.items():
            assert np.atleast_1d(batch[name][row]).tolist() == values, name


def test_evaluation_covers_every_example_once_in_order_over_three_ranks(prepared):
    data = DataConfig(data_dir=prepared)
    source = source_of(data, "eval")
    share = next(share for share in (4, 5, 7) if source.num_examples % (3 * share))
    size = 3 * share
    parts = [
        list(eval_batches(source, data, size, rank * share, (rank + 1) * share).as_numpy_iterator())
        for rank in range(3)
    ]
    found, expected = [], []
    for batch in itertools.chain.from_iterable(zip(*parts, strict=True)):
        kept = batch["example_weights"] > 0
        assert not batch["masked_lm_weights"][~kept].any()
        assert batch["masked_lm_weights"][kept].any(1).all()
        rows = zip(text_of(batch), batch["segment_ids"].tolist(), batch["next_sentence_labels"].tolist(), strict=True)
        found += itertools.compress(rows, kept)
    for record in examples(prepared, "eval"):
        ids, (start,), (label,) = record["input_ids"], record["second_segment_start"], record["next_sentence_labels"]
        expected.append((ids, [0] * start + [1] * (len(ids) - start) + [0] * (32 - len(ids)), label))
    assert found == expected


def test_evaluation_has_the_same_examples_and_masks_whatever_the_batch(prepared):
    data = DataConfig(data_dir=prepared)
    found = [joined(eval_batches(source_of(data, "eval"), data, size, 0, size, [range(7)])) for size in (4, 3)]
    assert [len(each["input_ids"]) for each in found] == [8, 9]
    real = [{name: value[each["example_weights"] > 0] for name, value in each.items()} for each in found]
    assert len(real[0]["input_ids"]) == 7
    same(*real)


def copy_of(folder, tmp_path):
    """Returns a copy of a data set, and its first training shard."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return str(tmp_path), read_manifest(str(tmp_path)).splits["train"][0].file


def failure(source, data):
    with pytest.raises(tf.errors.OpError) as caught:
        joined(train_batches(source, data, SEED, 0, source.num_examples, 0, source.num_examples), 1)
    return data_error(caught.value)


def test_shard_removed_during_a_run_surfaces_with_its_name(prepared, tmp_path):
    folder, shard = copy_of(prepared, tmp_path)
    data = DataConfig(data_dir=folder)
    source = source_of(data)
    os.remove(os.path.join(folder, shard))
    assert f"{folder}/{shard}: No such file" in str(failure(source, data))


def test_record_that_is_no_example_is_named(tmp_path):
    good = corpora.standard_example(np.random.default_rng(0))[0]
    path = corpora.write_tfrecords(tmp_path / "shard", [good, good.replace(b"input_ids", b"input\xffids")])
    found = str(failure(source_of(DataConfig(train_files=path)), DataConfig(train_files=path)))
    assert found.startswith(f"{path}: byte {len(good) + 16}: the record is not a tf.train.Example; expected")


def test_message_of_a_bad_value_is_the_whole_line(tmp_path):
    good, features = corpora.standard_example(np.random.default_rng(0))
    bad = corpora.serialize(features | {"next_sentence_labels": [2]})
    path = corpora.write_tfrecords(tmp_path / "it's \"é\\n] x", [good, bad])
    data = DataConfig(train_files=path)
    line = "next_sentence_labels is neither 0 nor 1; expected one of them"
    assert str(failure(source_of(data), data)) == f"{path}: byte {len(good) + 16}: {line}"


def test_message_of_a_damaged_record_is_the_whole_line(tmp_path):
    path = corpora.write_tfrecords(tmp_path / "shard", [corpora.standard_example(np.random.default_rng(0))[0]] * 2)
    data = DataConfig(train_files=path)
    source = source_of(data)
    size = os.path.getsize(path) // 2
    with open(path, "r+b") as file:
        file.seek(size + 20)
        file.write(b"\x00\x01")
    line = "the file is damaged; copy or prepare it again"
    found = str(failure(source, data))
    assert found == f"{path}: byte {size}: the record's checksum does not fit its {size - 16} bytes: {line}"


def test_missing_eval_files_are_named(tmp_path):
    path = corpora.write_tfrecords(tmp_path / "shard", [corpora.standard_example(np.random.default_rng(0))[0]])
    with pytest.raises(DataError, match="--eval_files is not given"):
        source_of(DataConfig(train_files=path), "eval")


def test_shard_with_fewer_records_than_the_manifest_says_is_named(prepared, tmp_path):
    folder, shard = copy_of(prepared, tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    content["splits"]["train"][0]["examples"] += 1
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"{shard}: it holds"):
        source_of(DataConfig(data_dir=folder))


def test_synthetic_text_fills_sequences_and_predictions():
    data = DataConfig(synthetic_data=True, max_seq_length=16, max_predictions_per_seq=14)
    batch = joined(train_batches(source_of(data), data, SEED, 0, 64, 0, 64), 1)
    assert batch["input_mask"].all()
    assert batch["masked_lm_weights"].all()
    assert batch["input_ids"].max() < 200
    assert set(batch["next_sentence_labels"].tolist()) == {0, 1}
    assert sorted(batch["masked_lm_positions"][0].tolist()) == list(range(1, 15))


@pytest.mark.parametrize(("width", "most"), [(2**10, 8), (2**22, 2)])
def test_of_large_batches_one_is_read_ahead(width, most):
    class Counting(ExampleSource):
        read = 0

        def batch(self, first_sample, count, order):
            def one(first):
                Counting.read += 1
                return np.zeros([count, width], np.int32)

            return {"input_ids": tf.numpy_function(one, [first_sample], tf.int32)}

    source = Counting(64, 16, {"input_ids": width})
    batches = iter(train_batches(source, DataConfig(synthetic_data=True, data_readers=2), SEED, 0, 4, 0, 4))
    next(batches)
    time.sleep(0.5)
    assert 1 < Counting.read <= most, Counting.read
