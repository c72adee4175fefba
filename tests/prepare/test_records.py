"""Records of other programs as prepared data: the same batches, and a source of a mixture."""

import os

import numpy as np
import pytest
import tensorflow as tf

from tests.data.test_pipeline import same
from tests.kit import corpora
from tests.kit.data_sets import open_source, opened_data
from tests.prepare.test_prepare import contents
from tftrain.config.data import DataConfig
from tftrain.config.prepare import PrepareConfig
from tftrain.data.manifest import read_manifest
from tftrain.data.pipeline import eval_batches, train_batches
from tftrain.files.errors import DataError
from tftrain.prepare.preparation import prepare

SEED, LENGTH, SLOTS = 3, 32, 5
TF_MODELS = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}


def example(rng, vocab_size, **changed):
    _, features = corpora.standard_example(rng, vocab_size, LENGTH, SLOTS)
    return features | changed


@pytest.fixture
def vocab(corpus):
    return str(corpus / "vocab.vocab")


@pytest.fixture
def vocab_size(vocab):
    return len(open(vocab).read().split())


@pytest.fixture
def records(tmp_path, vocab_size):
    """Files of training and of held-out records, of which one has tf-models' names."""
    rng = np.random.default_rng(0)
    for name, count in (("one.tfrecord", 20), ("two.tfrecord", 13), ("held.out", 9)):
        made = [example(rng, vocab_size) for _ in range(count)]
        if name.startswith("two"):
            made = [{TF_MODELS.get(key, key): values for key, values in each.items()} for each in made]
        corpora.write_tfrecords(tmp_path / name, map(corpora.serialize, made))
    return tmp_path


def config(records, vocab, **changes):
    settings = {"input_records": f"{records}/*.tfrecord", "eval_records": f"{records}/held.out", "vocab_file": vocab}
    settings |= {"num_workers": 1, "output_dir": str(records / "out")} | changes
    made = PrepareConfig(**settings)
    assert not made.problems()
    return made


def batches_of(data, vocab_size):
    train, held_out = (open_source(data, split, vocab_size, SEED) for split in ("train", "eval"))
    return [
        *train_batches(train, data, SEED, 0, 6, 0, 6).take(9).as_numpy_iterator(),
        *eval_batches(held_out, data, 4, 0, 4).as_numpy_iterator(),
    ]


def test_batches_are_those_of_the_records_themselves(records, vocab, vocab_size):
    made = prepare(config(records, vocab))
    alone = DataConfig(train_files=f"{records}/*.tfrecord", eval_files=f"{records}/held.out")
    found = batches_of(DataConfig(data_dir=made.folder), vocab_size)
    expected = batches_of(alone, vocab_size)
    assert len(found) == len(expected) == 12
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    assert (made.masking, made.max_seq_length, made.max_predictions_per_seq) == ("static", LENGTH, SLOTS)
    assert (made.examples("train"), made.examples("eval")) == (33, 9)
    masks = [batch["input_mask"][batch["example_weights"] > 0] for batch in found]
    assert made.tokens_read >= sum(mask.sum() for mask in masks[9:]) > 0
    assert read_manifest(made.folder) == made


def test_the_output_does_not_depend_on_the_workers_and_sums_the_tokens(records, vocab):
    for count in (1, 2):
        prepare(config(records, vocab, num_workers=count, output_dir=str(records / str(count))))
    assert contents(records / "1") == contents(records / "2")
    names = [str(records / name) for name in ("one.tfrecord", "two.tfrecord", "held.out")]
    payloads = tf.data.TFRecordDataset(names).as_numpy_iterator()
    parsed = [tf.train.Example.FromString(payload).features.feature for payload in payloads]
    tokens = sum(sum(features["input_mask"].int64_list.value) for features in parsed)
    assert read_manifest(str(records / "1")).tokens_read == tokens


def test_records_and_text_are_sources_of_one_mixture(records, vocab, vocab_size, prepare_config):
    text = prepare(prepare_config(records / "text", masking="static", max_predictions_per_seq=SLOTS))
    adopted = prepare(config(records, vocab, lower_case=True))
    data = DataConfig(mix=f"old=1:{adopted.folder},new=1:{text.folder}")
    assert opened_data(data).manifest.examples("train") == 33 + text.examples("train")
    assert all(batch["input_ids"].shape[1] == LENGTH for batch in batches_of(data, vocab_size)[:9])


def test_causal_records_keep_their_last_label(tmp_path, vocab, vocab_size):
    rng = np.random.default_rng(1)
    payloads = [corpora.serialize({"input_ids": rng.integers(0, vocab_size, 17).tolist()}) for _ in range(6)]
    corpora.write_tfrecords(tmp_path / "a.tfrecord", payloads)
    made = prepare(config(tmp_path, vocab, eval_records=None, objective="causal"))
    assert (made.max_seq_length, made.max_predictions_per_seq, made.masking) == (16, None, None)
    assert made.tokens_read == 6 * 17
    copies = tf.data.TFRecordDataset(made.path(made.splits["train"][0].file))
    assert list(copies.as_numpy_iterator()) == payloads


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"input_ids": [5] * 20}, "the record has 20 input_ids; the first record of all has 32"),
        ({"input_ids": [10**6] * LENGTH}, "the record has 1000000 in input_ids; expected ints from 0 to "),
        ({"masked_lm_positions": [LENGTH] * SLOTS}, "the record has 32 in masked_lm_positions; expected ints from"),
        ({"masked_lm_weights": [*[1.0] * (SLOTS - 1), float("nan")]}, "the record has nan in masked_lm_weights"),
        ({"masked_lm_weights": [5.0] * SLOTS}, "the record has 5.0 in masked_lm_weights; expected floats from"),
        ({"next_sentence_labels": []}, "the record has 0 next_sentence_labels"),
    ],
)
def test_a_record_that_is_not_like_the_others_is_named_and_nothing_is_left(records, vocab, vocab_size, changed, fault):
    rng = np.random.default_rng(2)
    good, bad = (
        corpora.serialize({k: v for k, v in each.items() if v})
        for each in (example(rng, vocab_size), example(rng, vocab_size, **changed))
    )
    path = corpora.write_tfrecords(records / "zzz.tfrecord", [good, bad])
    with pytest.raises(DataError) as error:
        prepare(config(records, vocab))
    assert str(error.value).startswith(f"{path}: byte ")
    assert fault in str(error.value)
    assert not os.path.exists(records / "out")


def test_files_and_flags_that_do_not_fit_are_refused(records, vocab):
    with pytest.raises(DataError, match=r"--input_records=.*: no file matches"):
        prepare(config(records, vocab, input_records=f"{records}/*.none"))
    with pytest.raises(DataError, match=r"--eval_records=.*one.tfrecord is one of --input_records too"):
        prepare(config(records, vocab, eval_records=f"{records}/o*.tfrecord"))
    made = PrepareConfig(input_records="x", output_dir="y", packing="greedy", eval_fraction=0.5)
    assert [problem.flag for problem in made.problems()] == ["packing", "eval_fraction", "vocab_file"]
    (problem,) = PrepareConfig(input_files=("x",), output_dir="y", eval_records="x").problems()
    assert problem.flag == "eval_records"
