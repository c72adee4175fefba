"""What does not fit the data is said before TensorFlow starts, with the flag's name."""

import dataclasses
import gzip
import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from tests.kit import corpora
from tests.kit.data_sets import open_source
from tftrain.config.data_sizes import predictions
from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.data.manifest import read_manifest, write_manifest
from tftrain.files.errors import DataError
from tftrain.inputs.inputs import Inputs
from tftrain.prepare.preparation import prepare


def problems(config):
    return Inputs.open(config).problems()


def sizes(config):
    return Inputs.open(config).data[0].sizes


def config(model=None, run=None, **data):
    return changed(TrainConfig(), {**(model or {}), **(run or {}), **data})


GPT = {"model_family": "gpt", "vocab_size": 300}


@pytest.fixture(scope="module")
def causal(prepare_config, tmp_path_factory):
    changes = {"objective": "causal", "tokenizer_type": "bpe", "vocab_file": None, "vocab_size": 300}
    folder = tmp_path_factory.mktemp("causal") / "bpe"
    prepare(prepare_config(folder, **changes))
    return str(folder)


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


def test_sizes_follow_from_standard_records(standard):
    made = config({"vocab_size": 100}, train_files=standard)
    assert sizes(made) == (100, 16, 3)
    assert problems(made) == []


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


def test_gzip_records_are_refused(tmp_path, standard):
    path = tmp_path / "records.gz"
    path.write_bytes(gzip.compress(Path(standard).read_bytes()))
    made = config({"vocab_size": 100}, train_files=str(path))
    line = f"{path}: byte 0: this is gzip, not plain TFRecord; uncompress it first (gunzip)"
    (found,) = problems(made)
    assert (found.flag, found.expected) == ("train_files", line)
    with pytest.raises(DataError, match=re.escape(line)):
        open_source(made.data, "train", 100, seed=1)


def test_sizes_of_synthetic_data():
    assert sizes(config(synthetic_data=True)) == (30522, 128, 20)
    assert sizes(config({"vocab_size": 99}, synthetic_data=True, max_seq_length=64)) == (99, 64, 10)
    assert problems(config(synthetic_data=True)) == []


def test_predictions_round_up():
    assert [predictions(length, 0.15) for length in (128, 512, 20, 8)] == [20, 77, 3, 2]


@pytest.mark.parametrize(
    ("model", "data", "flag", "words"),
    [
        ({"vocab_size": 6}, {}, "vocab_size", "at least the"),
        ({}, {"max_seq_length": 64}, "max_seq_length", "the 32 of"),
        ({"max_position_embeddings": 31}, {}, "max_position_embeddings", "at least the max_seq_length=32"),
        ({}, {"max_predictions_per_seq": 30}, "max_predictions_per_seq", "at most 29"),
    ],
)
def test_what_does_not_fit_dynamic_data(prepared, model, data, flag, words):
    (found,) = problems(config(model, data_dir=prepared, **data))
    assert found.flag == flag
    assert words in found.expected


@pytest.mark.parametrize(
    ("name", "lengths", "words"),
    [
        ("prepared_packed", "16", "are packed, so they are full"),
        ("prepared", "16,64", "at most --max_seq_length=32"),
        ("standard", "8,32", "at most --max_seq_length=16"),
    ],
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


@pytest.mark.parametrize(
    "data", [{"whole_word_masking": True}, {"masked_lm_prob": 0.2}, {"max_predictions_per_seq": 9}]
)
def test_masks_in_the_records_cannot_be_changed(prepared_static, standard, data):
    for made in (config(data_dir=prepared_static, **data), config({"vocab_size": 100}, train_files=standard, **data)):
        assert flags_of(problems(made)) == list(data)


def test_all_problems_are_found_at_once(prepared):
    made = config({"vocab_size": 6, "max_position_embeddings": 16}, data_dir=prepared, max_seq_length=64)
    assert flags_of(problems(made)) == ["vocab_size", "max_seq_length", "max_position_embeddings"]


def test_standard_records_need_a_stated_vocabulary(standard):
    assert flags_of(problems(config(train_files=standard))) == ["vocab_size"]
    with pytest.raises(DataError, match="--vocab_size is not given"):
        sizes(config(train_files=standard))


def test_globs_that_match_nothing_are_named(standard, tmp_path):
    nothing = str(tmp_path / "no*")
    (found,) = problems(config({"vocab_size": 100}, train_files=standard, eval_files=nothing))
    assert str(found).startswith(f"--eval_files={nothing}: no file matches")


def test_eval_files_of_other_sizes_are_named(standard, tmp_path):
    longer = corpora.standard_example(np.random.default_rng(0), length=20)[0]
    other = corpora.write_tfrecords(tmp_path / "other", [longer])
    (found,) = problems(config({"vocab_size": 100}, train_files=standard, eval_files=other))
    assert found.flag == "eval_files"
    assert "max_seq_length 16 and max_predictions_per_seq 3" in found.expected


def test_missing_data_dir_is_one_problem(tmp_path):
    (found,) = problems(config(data_dir=str(tmp_path / "none")))
    assert found.flag == "data_dir"
    assert "no such file" in found.expected


def test_synthetic_data_longer_than_the_positions():
    assert flags_of(problems(config({"max_position_embeddings": 64}, synthetic_data=True))) == [
        "max_position_embeddings"
    ]


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
    for run, flags in (
        ({"mode": "evaluate"}, (["data_dir"], ["eval_files"])),
        ({"eval_every": 5}, (["eval_every"], ["eval_every"])),
        ({}, ([], [])),
    ):
        assert flags_of(problems(config(run=run, data_dir=folder))) == flags[0]
        assert flags_of(problems(config({"vocab_size": 100}, run=run, train_files=standard))) == flags[1]
        assert problems(config(run=run, data_dir=prepared)) == []
        made = config({"vocab_size": 100}, run=run, train_files=standard, eval_files=standard)
        assert problems(made) == []


def test_both_segments_need_a_token_type(prepared, standard, tmp_path):
    for data in (
        {"synthetic_data": True},
        {"data_dir": prepared},
        {"train_files": standard},
    ):
        (found,) = problems(config({"vocab_size": 100, "type_vocab_size": 1}, **data))
        assert str(found) == "--type_vocab_size=1: expected at least 2, the token types of an example"
    made = config({"type_vocab_size": 1}, data_dir=str(tmp_path / "none"))
    assert flags_of(problems(made)) == ["type_vocab_size", "data_dir"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 2.0])
def test_flags_out_of_their_bounds_do_not_stop_the_checks(prepared, standard, value):
    wrong = {"masked_lm_prob": value, "max_seq_length": -5, "max_predictions_per_seq": -1}
    model = {"vocab_size": -1, "max_position_embeddings": 0, "type_vocab_size": 0}
    for data in ({"synthetic_data": True}, {"data_dir": prepared}, {"train_files": standard}):
        assert "type_vocab_size" in flags_of(
            problems(config(model, run={"mode": "no", "eval_every": -2}, **data, **wrong))
        )
    assert problems(config(synthetic_data=True, masked_lm_prob=value)) == []


def test_vocabulary_that_cannot_be_read_is_a_problem(prepared, tmp_path, monkeypatch):
    shutil.copytree(prepared, tmp_path / "data")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tftrain.data.manifest.hashlib.sha256", refuse)
    (found,) = problems(config(data_dir=str(tmp_path / "data")))
    assert found.flag == "data_dir"
    assert "vocab.txt: Permission denied" in found.expected


def test_sizes_of_a_decoder_follow_from_its_data(causal):
    records = {"train_files": f"{causal}/train-*", "eval_files": f"{causal}/eval-*"}
    for data in ({"data_dir": causal}, records):
        made = config(GPT, **data)
        assert problems(made) == []
        assert sizes(made) == (300, 32, 32)
        # As a resumed run has it, from its checkpoint.
        assert problems(config(GPT, max_seq_length=32, max_predictions_per_seq=32, **data)) == []
    assert sizes(config({"model_family": "gpt"}, data_dir=causal)) == (300, 32, 32)
    assert sizes(config(GPT, synthetic_data=True)) == (300, 128, 128)
    assert problems(config(GPT, synthetic_data=True)) == []


@pytest.mark.parametrize("source", ["prepared", "files", "synthetic"])
def test_a_decoder_has_no_flags_of_masks(causal, source):
    data = {"prepared": {"data_dir": causal}, "files": {"train_files": f"{causal}/train-*"}}
    data = data.get(source, {"synthetic_data": True})
    for name, value in (("masked_lm_prob", 0.2), ("whole_word_masking", True), ("max_predictions_per_seq", 5)):
        (found,) = problems(config(GPT, **data, **{name: value}))
        assert found.flag == name
        assert "--model_family=" in found.expected
    assert flags_of(problems(config(GPT | {"type_vocab_size": 1}, **data))) == []


def test_lengths_bind_only_learned_positions(causal):
    model = GPT | {"max_position_embeddings": 31}
    assert flags_of(problems(config(model, data_dir=causal))) == ["max_position_embeddings"]
    assert flags_of(problems(config(model, synthetic_data=True))) == ["max_position_embeddings"]
    model["position_embedding"] = "rotary"
    assert problems(config(model, data_dir=causal)) == problems(config(model, synthetic_data=True)) == []
    assert flags_of(problems(config(GPT, data_dir=causal, max_seq_length=64))) == ["max_seq_length"]


def test_data_of_the_other_family_is_one_line_that_names_both(causal, prepared, standard):
    (found,) = problems(config(data_dir=causal))
    assert str(found) == (
        f"--data_dir={causal}: the data was prepared with --objective=causal, but --model_family=bert or modernbert "
        "trains on --objective=masked; prepare the text with that, or use --model_family=gpt or llama"
    )
    (found,) = problems(config({"model_family": "gpt"}, data_dir=prepared))
    assert "--objective=masked, but --model_family=gpt or llama trains on --objective=causal; " in found.expected
    with pytest.raises(DataError, match="--objective=masked, but --model_family=gpt"):
        sizes(config({"model_family": "gpt"}, data_dir=prepared))
    (found,) = problems(config({"vocab_size": 300}, train_files=f"{causal}/train-*"))
    assert found.flag == "train_files"
    assert "lacks input_mask, segment_ids" in found.expected
    assert found.expected.endswith("for --model_family=bert or modernbert")
    (found,) = problems(config(GPT, train_files=standard))
    assert "the record has masked_lm_positions, as for --model_family=bert" in found.expected
