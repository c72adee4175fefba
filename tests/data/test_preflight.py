"""What does not fit the data is said before TensorFlow starts, with the flag's name."""

import dataclasses
import json
import shutil

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from tests.kit import corpora
from tests.kit.data_sets import open_source, opened_data
from tftrain.config.data import DataConfig
from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.data.manifest import read_manifest, write_manifest
from tftrain.data.sizes import predictions
from tftrain.files.errors import DataError
from tftrain.inputs.inputs import Inputs


def problems(config):
    return Inputs.open(config).problems()


def sizes(config):
    return Inputs.open(config).data[0].sizes


def config(model=None, run=None, **data):
    return changed(TrainConfig(), {**(model or {}), **(run or {}), **data})


GPT = {"model_family": "gpt", "vocab_size": 300}


def flags_of(found):
    return [problem.flag for problem in found]


@pytest.fixture
def standard(tmp_path):
    rng = np.random.default_rng(0)
    return corpora.write_tfrecords(tmp_path / "bert", [corpora.standard_example(rng)[0] for _ in range(3)])


def test_sizes_follow_from_prepared_data(prepared, prepared_static):
    vocab_size = read_manifest(prepared).vocab_size
    assert sizes(config(data_dir=prepared)) == (vocab_size, 32, 5)
    assert sizes(config(data_dir=prepared, masked_lm_prob=0.3)) == (vocab_size, 32, 10)
    assert sizes(config({"vocab_size": 128}, data_dir=prepared, max_predictions_per_seq=7)) == (128, 32, 7)
    assert sizes(config(data_dir=prepared_static)) == (vocab_size, 32, 5)
    assert problems(config(data_dir=prepared)) == problems(config(data_dir=prepared_static)) == []


def test_records_with_the_names_of_tf_models_give_the_same_batches(tmp_path, standard):
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    rng = np.random.default_rng(0)
    examples = [corpora.standard_example(rng)[1] for _ in range(3)]
    renamed = [corpora.serialize({names.get(key, key): value for key, value in each.items()}) for each in examples]
    batches = []
    for path in (standard, corpora.write_tfrecords(tmp_path / "renamed", renamed)):
        made = config({"vocab_size": 100}, train_files=path)
        assert problems(made) == []
        assert sizes(made) == (100, 16, 3)
        source = open_source(made.data, "train", 100, seed=1)
        batches.append(source.batch(tf.constant(0, tf.int64), 3, lambda numbers: numbers[::-1]))
    assert batches[0].keys() == batches[1].keys()
    for name, values in batches[0].items():
        np.testing.assert_array_equal(batches[1][name], values, err_msg=name)
    np.testing.assert_array_equal(batches[1]["input_ids"][2], examples[0]["input_ids"])


def test_sizes_of_synthetic_data():
    assert sizes(config(synthetic_data=True)) == (30522, 128, 20)
    assert sizes(config({"vocab_size": 99}, synthetic_data=True, max_seq_length=64)) == (99, 64, 10)
    assert problems(config(synthetic_data=True)) == []
    assert [predictions(length, 0.15) for length in (128, 512, 20, 8)] == [20, 77, 3, 2]


@pytest.mark.parametrize(
    ("name", "lengths", "words"),
    [("prepared_packed", "16", "are packed, so they are full"), ("standard", "8,32", "at most --max_seq_length=16")],
)
def test_lengths_of_batches_must_fit_the_data(request, name, lengths, words):
    data = request.getfixturevalue(name)
    given = {"train_files": data, "eval_files": data} if name == "standard" else {"data_dir": data}
    found = problems(config({"vocab_size": 200}, **given, seq_length_buckets=lengths))
    assert flags_of(found) == ["seq_length_buckets"]
    assert words in found[0].expected


def test_cudnn_takes_no_packed_rows(prepared, prepared_packed):
    packed, plain = (problems(config({"attn_impl": "cudnn"}, data_dir=data)) for data in (prepared_packed, prepared))
    assert flags_of(packed) == ["attn_impl"]
    assert "are packed, and cuDNN would mix their examples" in packed[0].expected
    assert not plain


def test_the_automatic_core_of_packed_rows_is_flash_on_every_device(prepared, prepared_packed):
    made = [config({"attn_impl": "auto"}, data_dir=data) for data in (prepared_packed, prepared)]
    assert [Inputs.open(each).with_sizes(each).model.attn_impl for each in made] == ["flash", "auto"]


def test_masks_in_the_records_cannot_be_changed(standard):
    data = {"max_predictions_per_seq": 9, "whole_word_masking": True, "masked_lm_prob": 0.2}
    assert flags_of(problems(config({"vocab_size": 100}, train_files=standard, **data))) == list(data)


def test_all_problems_are_found_at_once(prepared):
    made = config({"vocab_size": 6, "max_position_embeddings": 16}, data_dir=prepared, max_seq_length=64)
    assert flags_of(problems(made)) == ["vocab_size", "max_seq_length", "max_position_embeddings"]


def test_eval_files_of_other_sizes_are_named(standard, tmp_path):
    longer = corpora.standard_example(np.random.default_rng(0), length=20)[0]
    other = corpora.write_tfrecords(tmp_path / "other", [longer])
    (found,) = problems(config({"vocab_size": 100}, train_files=standard, eval_files=other))
    assert found.flag == "eval_files"
    assert "max_seq_length 16 and max_predictions_per_seq 3" in found.expected


def without(manifest, split, folder):
    """Writes a copy of a data set one split of which is empty; returns its folder."""
    kept = [shard.file for name, shards in manifest.splits.items() if name != split for shard in shards]
    for name in ("vocab.txt", *kept):
        shutil.copy(manifest.path(name), folder / name)
    write_manifest(msgspec.structs.replace(manifest, folder=str(folder), splits=manifest.splits | {split: []}))
    return str(folder)


def test_train_split_may_be_empty_only_for_evaluation(prepared, tmp_path):
    made = config(data_dir=without(read_manifest(prepared), "train", tmp_path))
    assert flags_of(problems(made)) == ["data_dir"]
    assert problems(dataclasses.replace(made, run=dataclasses.replace(made.run, mode="evaluate"))) == []


def test_evaluation_needs_a_held_out_split(prepared, standard, tmp_path):
    folder = without(read_manifest(prepared), "eval", tmp_path)
    expected = (["data_dir"], ["eval_files"]), (["eval_every"], ["eval_every"]), ([], [])
    for run, flags in zip(({"mode": "evaluate"}, {"eval_every": 5}, {}), expected, strict=True):
        assert flags_of(problems(config(run=run, data_dir=folder))) == flags[0]
        assert flags_of(problems(config({"vocab_size": 100}, run=run, train_files=standard))) == flags[1]
        assert problems(config(run=run, data_dir=prepared)) == []
        made = config({"vocab_size": 100}, run=run, train_files=standard, eval_files=standard)
        assert problems(made) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 2.0])
def test_flags_out_of_their_bounds_do_not_stop_the_checks(prepared, standard, value):
    wrong = {"masked_lm_prob": value, "max_seq_length": -5, "max_predictions_per_seq": -1}
    model = {"vocab_size": -1, "max_position_embeddings": 0, "type_vocab_size": 0}
    for data in ({"synthetic_data": True}, {"data_dir": prepared}, {"train_files": standard}):
        found = problems(config(model, run={"mode": "no", "eval_every": -2}, **data, **wrong))
        assert "type_vocab_size" in flags_of(found)
    assert problems(config(synthetic_data=True, masked_lm_prob=value)) == []


def test_sizes_of_a_decoder_follow_from_its_data(prepared_causal):
    records = {"train_files": f"{prepared_causal}/train-*", "eval_files": f"{prepared_causal}/eval-*"}
    for data in ({"data_dir": prepared_causal}, records):
        made = config(GPT, **data)
        assert problems(made) == []
        assert sizes(made) == (300, 32, 32)
        # As a resumed run has it, from its checkpoint.
        assert problems(config(GPT, max_seq_length=32, max_predictions_per_seq=32, **data)) == []
    assert sizes(config({"model_family": "gpt"}, data_dir=prepared_causal)) == (300, 32, 32)
    assert sizes(config(GPT, synthetic_data=True)) == (300, 128, 128)
    assert problems(config(GPT, synthetic_data=True)) == []


@pytest.mark.parametrize("source", ["prepared", "files", "synthetic"])
def test_a_decoder_has_no_flags_of_masks(prepared_causal, source):
    data = {"prepared": {"data_dir": prepared_causal}, "files": {"train_files": f"{prepared_causal}/train-*"}}
    data = data.get(source, {"synthetic_data": True})
    for name, value in (("masked_lm_prob", 0.2), ("whole_word_masking", True), ("max_predictions_per_seq", 5)):
        (found,) = problems(config(GPT, **data, **{name: value}))
        assert found.flag == name
        assert "--model_family=" in found.expected
    assert flags_of(problems(config(GPT | {"type_vocab_size": 1}, **data))) == []


def test_lengths_bind_only_learned_positions(prepared_causal):
    model = GPT | {"max_position_embeddings": 31}
    assert flags_of(problems(config(model, data_dir=prepared_causal))) == ["max_position_embeddings"]
    assert flags_of(problems(config(model, synthetic_data=True))) == ["max_position_embeddings"]
    model["position_embedding"] = "rotary"
    assert problems(config(model, data_dir=prepared_causal)) == problems(config(model, synthetic_data=True)) == []
    assert flags_of(problems(config(GPT, data_dir=prepared_causal, max_seq_length=64))) == ["max_seq_length"]


def test_data_of_the_other_family_is_one_line_that_names_both(prepared_causal, prepared):
    (found,) = problems(config(data_dir=prepared_causal))
    assert str(found).startswith(f"--data_dir={prepared_causal}: the data was prepared with --objective=causal, but")
    assert found.expected.endswith("or use --model_family=gpt or llama")
    with pytest.raises(DataError, match="--objective=masked, but --model_family=gpt"):
        sizes(config({"model_family": "gpt"}, data_dir=prepared))
    (found,) = problems(config({"vocab_size": 300}, train_files=f"{prepared_causal}/train-*"))
    assert found.flag == "train_files"
    assert "lacks input_mask, segment_ids" in found.expected
    assert found.expected.endswith("for --model_family=bert or modernbert or roberta or distilbert")


def test_a_copy_is_the_same_data_and_another_preparation_is_not(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    original = opened_data(DataConfig(data_dir=prepared)).identity
    assert original
    assert opened_data(DataConfig(data_dir=str(tmp_path))).identity == original
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seed": 99}))
    changed = opened_data(DataConfig(data_dir=str(tmp_path))).identity
    assert [name for name in original if changed[name] != original[name]] == ["manifest.json of the data"]


def test_records_are_told_apart_by_names_and_sizes(tmp_path):
    rng = np.random.default_rng(0)
    payloads = [corpora.standard_example(rng)[0] for _ in range(3)]
    for folder, name, count in (("a", "x", 2), ("b", "x", 2), ("c", "y", 2), ("d", "x", 3)):
        (tmp_path / folder).mkdir()
        corpora.write_tfrecords(tmp_path / folder / name, payloads[:count])
    a, b, c, d = (opened_data(DataConfig(train_files=f"{tmp_path}/{folder}/*")).identity for folder in "abcd")
    assert a == b
    assert a != c
    assert a != d
    assert opened_data(DataConfig(synthetic_data=True)).identity == {}
