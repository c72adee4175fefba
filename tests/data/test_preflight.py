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
from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.data.manifest import read_manifest, write_manifest
from tftrain.data.sizes import predictions
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
    ("name", "model", "flags", "words"),
    [
        ("prepared_packed", {}, {"seq_length_buckets": "16"}, "are packed, so they are full"),
        ("prepared_packed", {"attn_impl": "cudnn"}, {}, "are packed, and cuDNN would mix their examples"),
        ("prepared", {}, {"seq_length_buckets": "16,64"}, "at most --max_seq_length=32"),
        ("standard", {}, {"seq_length_buckets": "8,32"}, "at most --max_seq_length=16"),
        ("standard", {}, {"whole_word_masking": True}, "expected false: the data has masks in the records"),
        ("standard", {}, {"masked_lm_prob": 0.2}, "the data has masks in the records"),
        ("standard", {}, {"max_predictions_per_seq": 9}, "or give 3: the data has masks in the records"),
        (None, {"max_position_embeddings": 64}, {}, "at least --max_seq_length=128"),
        (None, {"type_vocab_size": 1}, {}, "expected at least 2, the token types of an example"),
        ("prepared", {"type_vocab_size": 1}, {}, "expected at least 2, the token types of an example"),
        ("standard", {"type_vocab_size": 1}, {}, "expected at least 2, the token types of an example"),
    ],
)
def test_a_flag_that_does_not_fit_the_data_is_the_only_problem(request, name, model, flags, words):
    data = request.getfixturevalue(name) if name else None
    given = {"train_files": data, "eval_files": data} if name == "standard" else {"data_dir": data}
    (found,) = problems(config({"vocab_size": 200, **model}, **(given if name else {"synthetic_data": True}), **flags))
    assert found.flag in {**model, **flags}
    assert words in found.expected


def test_all_problems_are_found_at_once(prepared, tmp_path):
    made = config({"vocab_size": 6, "max_position_embeddings": 16}, data_dir=prepared, max_seq_length=64)
    assert flags_of(problems(made)) == ["vocab_size", "max_seq_length", "max_position_embeddings"]
    made = config({"type_vocab_size": 1}, data_dir=str(tmp_path / "none"))
    assert flags_of(problems(made)) == ["type_vocab_size", "data_dir"]


def test_standard_records_need_a_stated_vocabulary(standard):
    with pytest.raises(DataError, match="--vocab_size is not given"):
        sizes(config(train_files=standard))


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
