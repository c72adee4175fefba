"""Mixtures: shares against counts, the same samples for every layout and after a resume, and what is refused."""

import hashlib
import json
import re
import shutil
import time

import numpy as np
import pytest

from tests.data.test_pipeline import joined
from tests.kit import corpora
from tests.kit.data_sets import open_source, opened_data
from tftrain.config import mixture
from tftrain.config.data import DataConfig
from tftrain.config.mixture import PERIOD, Source
from tftrain.data.left_out import NOTHING, LeftOut
from tftrain.data.mixture import Mixture
from tftrain.data.pipeline import eval_batches, train_batches
from tftrain.finetune.splits import JoinedSource, MemorySource
from tftrain.prepare.preparation import prepare

SEED = 5
SHARES = [[0.7, 0.3], [1.0], [1, 2, 3, 4], [0.9, 0.05, 0.03, 0.02], [1e-4, 1], [1] * 7, [1 / n for n in range(1, 200)]]


def mixed(weights, sizes=None, block=1):
    sources = [Source(f"s{number}", weight / sum(weights), "") for number, weight in enumerate(weights)]
    return Mixture(dict(zip(sources, sizes or [100] * len(weights), strict=True)), block)


def source_of(found, begins):
    return np.searchsorted(begins, found, side="right") - 1


@pytest.mark.parametrize("weights", SHARES, ids=len)
def test_shares_hold_to_a_thousandth_over_any_ten_thousand_samples(weights):
    own = mixed(weights)
    for first in (0, 12345, PERIOD - 5000, 3 * PERIOD + 17, 10**12):
        found = own.example_numbers(np.arange(first, first + 10_000), SEED)
        counts = np.bincount(source_of(found, np.arange(len(weights)) * 100), minlength=len(weights))
        np.testing.assert_allclose(counts / 10_000, np.array(weights) / sum(weights), rtol=0, atol=1e-3)


@pytest.mark.parametrize("block", [1, 6])
@pytest.mark.parametrize("weights", [[0.7, 0.3], [5, 1, 1, 3]])
def test_every_example_of_a_source_occurs_once_in_its_epochs_and_each_in_another_order(weights, block):
    sizes = [31, 17, 13, 20][: len(weights)]
    own, begins = mixed(weights, sizes, block), np.cumsum([0, *sizes])
    found = own.example_numbers(np.arange(2000), SEED)
    owners = source_of(found[: 2000 // block * block], begins[:-1]).reshape(-1, block)
    assert (owners == owners[:, :1]).all()
    for number, size in enumerate(sizes):
        of_source = found[source_of(found, begins[:-1]) == number] - begins[number]
        whole = of_source[: len(of_source) // size * size].reshape(-1, size)
        assert len(whole) > 10
        assert (np.sort(whole, axis=1) == np.arange(size)).all()
        assert len({tuple(row) for row in whole.tolist()}) == len(whole)
        assert list(own.rows(number)) == list(range(begins[number], begins[number + 1]))


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("first", [0, 1, 777, PERIOD - 3, 5 * PERIOD - 1])
def test_the_count_of_consumed_samples_is_that_of_the_samples(first, block):
    own = mixed([3, 1, 2], block=block)
    counts = [own.consumed(number) for number in range(first, first + 5)]
    found = source_of(own.example_numbers(np.arange(first, first + 4), SEED), np.array([0, 100, 200]))
    for number, before, after in zip(found, counts, counts[1:], strict=False):
        assert (after - before).tolist() == [int(each == number) for each in range(3)]
    assert all(count.sum() == number for number, count in enumerate(counts, first))


def test_a_sample_does_not_depend_on_the_samples_asked_for_with_it():
    own, samples = mixed([3, 1, 2]), np.array([5, 10**10, 3, PERIOD, 5])
    alone = [own.example_numbers(samples[n : n + 1], SEED)[0] for n in range(len(samples))]
    assert own.example_numbers(samples, SEED).tolist() == alone
    assert own.example_numbers(samples, SEED + 1).tolist() != alone


def labelled(block, first, count, start=0, stop=6, left_out=NOTHING):
    """Returns `count` batches of 6 samples from `first` on, [count, n]: 1000 s + n for row n of source s."""
    sizes = (31, 17, 50)
    rows = [lambda numbers, first=first: {"x": first + numbers} for first in (0, 1000, 2000)]
    source = JoinedSource([MemorySource([], size, 8, each) for size, each in zip(sizes, rows, strict=True)])
    source.mixture = mixed([3, 1, 2], sizes, block)
    found = train_batches(source, DataConfig(), SEED, first, 6, start, stop, left_out).take(count).as_numpy_iterator()
    found, owners = zip(*((batch["x"], batch["source"]) for batch in found), strict=True)
    np.testing.assert_array_equal(np.array(found) // 1000, owners)
    return np.array(found)


@pytest.mark.parametrize("block", [1, 6])
def test_labelled_files_give_the_same_samples_on_any_ranks_and_after_a_resume(block):
    whole = labelled(block, 0, 40)
    ranks = [labelled(block, 30, 35, 2 * rank, 2 * rank + 2) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(ranks, axis=1), whole[5:])
    np.testing.assert_allclose(np.bincount(whole.reshape(-1) // 1000), [120, 40, 80], atol=2 * block)


@pytest.mark.parametrize(("first", "left_out"), [(0, NOTHING), (31, NOTHING), (31, LeftOut(((40, 53),)))])
def test_a_batch_has_one_source_even_after_a_change_of_its_size(first, left_out):
    found = labelled(6, first, 30, left_out=left_out) // 1000
    assert ((found == found[:, :1]).all(), len(np.unique(found))) == (True, 3)


def test_a_thousand_sources_are_ready_in_a_second():
    begin = time.process_time()
    own = mixed([1 + n % 3 for n in range(1000)])
    own.example_numbers(np.arange(10**9, 10**9 + 256), SEED)
    assert time.process_time() - begin < 1


@pytest.fixture(scope="module")
def folders(prepare_config, tmp_path_factory):
    """Two data sets of the same vocabulary, of other text."""
    root, found = tmp_path_factory.mktemp("mixture"), {}
    for number, name in enumerate(("wiki", "code")):
        (root / f"{name}.txt").write_text(corpora.text(60, seed=number + 10))
        found[name] = str(root / name)
        prepare(prepare_config(found[name], input_files=f"{root}/{name}.txt"))
    return found


def mix_of(folders, *shares):
    return ",".join(f"{name}={share}:{folder}" for share, (name, folder) in zip(shares, folders.items(), strict=True))


def prepared_again(folders, root, prepare_config, **changes):
    """Prepares the same texts with other flags; returns the folders."""
    made = {name: str(root / name) for name in folders}
    for name, folder in folders.items():
        prepare(prepare_config(made[name], input_files=f"{folder}.txt", **changes))
    return made


@pytest.fixture(scope="module")
def causal(folders, prepare_config, tmp_path_factory):
    """The same texts for a decoder."""
    return prepared_again(folders, tmp_path_factory.mktemp("causal"), prepare_config, objective="causal")


@pytest.fixture(params=["causal", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("packed", "buckets"))])
def data(request, folders, prepare_config, tmp_path):
    if request.param == "buckets":
        return DataConfig(mix=mix_of(folders, 3, 1), seq_length_buckets="16,24")
    if request.param == "causal":
        return DataConfig(mix=mix_of(request.getfixturevalue("causal"), 3, 1))
    packed = prepared_again(folders, tmp_path, prepare_config, packing="greedy", short_seq_prob=0.9)
    return DataConfig(mix=mix_of(packed, 3, 1))


def opened(data, split="train"):
    objective = opened_data(data).manifest.objective
    return open_source(data, split, 200, SEED, objective)


def batches(data, first=0, size=6, start=0, stop=None):
    return train_batches(opened(data), data, SEED, first, size, start, size if stop is None else stop)


def test_samples_do_not_depend_on_ranks_micro_batches_or_a_resume(data):
    whole = [*batches(data).take(12).as_numpy_iterator()]
    resumed = [*batches(data, first=5 * 6).take(7).as_numpy_iterator()]
    parts = [[*batches(data, 30, 6, rank * 2, rank * 2 + 2).take(7).as_numpy_iterator()] for rank in range(3)]
    for number, (batch, again) in enumerate(zip(whole[5:], resumed, strict=True)):
        for name, value in batch.items():
            np.testing.assert_array_equal(again[name], value)
            np.testing.assert_array_equal(np.concatenate([part[number][name] for part in parts]), value)


def test_a_batch_has_the_records_of_its_sources(causal):
    data = DataConfig(mix=mix_of(causal, 3, 1))
    alone = [joined(eval_batches(opened(DataConfig(data_dir=folder)), data, 8, 0, 8)) for folder in causal.values()]
    source, found = opened(data), joined(batches(data), 20)
    numbers = source.example_numbers(np.arange(120), SEED)
    for name in ("input_ids", "labels"):
        records = np.concatenate([each[name][each["example_weights"] > 0] for each in alone])
        assert len(records) == source.num_examples
        np.testing.assert_array_equal(found[name], records[numbers])


def test_an_evaluation_reads_the_held_out_rows_of_one_source_after_another(folders):
    data = DataConfig(mix=mix_of(folders, 3, 1))
    source = opened(data, "eval")
    alone = [opened(DataConfig(data_dir=folder), "eval") for folder in folders.values()]
    parts = [source.mixture.rows(number) for number in range(len(alone))]
    assert [len(part) for part in parts] == [own.num_examples for own in alone]
    size = next(size for size in (4, 5, 7) if any(len(part) % size for part in parts))
    found = joined(eval_batches(source, data, size, 0, size, parts))
    expected = [joined(eval_batches(own, data, size, 0, size)) for own in alone]
    real = found["example_weights"] > 0
    assert not found["masked_lm_weights"][~real].any()
    for name in ("segment_ids", "input_mask", "next_sentence_labels", "example_weights"):
        of_both = np.concatenate([each[name] for each in expected])
        np.testing.assert_array_equal(found[name][real], of_both[real])
    np.testing.assert_array_equal(real, np.concatenate([each["example_weights"] for each in expected]) > 0)


def test_shares_and_temperature():
    shares = [source.share for source in mixture.read("a=6:x,b=2:y,c=2:z")]
    np.testing.assert_allclose(shares, [0.6, 0.2, 0.2])
    shares = [source.share for source in mixture.read("a=9:x,b=1:y", 2)]
    np.testing.assert_allclose(shares, [0.75, 0.25])


def test_a_file_names_sources_too(tmp_path):
    (tmp_path / "mix.txt").write_text("# two\nwiki=0.7: data/wiki\n\ncode=0.3:data/code # more\n")
    found = mixture.read(str(tmp_path / "mix.txt"))
    assert [(each.name, each.path) for each in found] == [("wiki", "data/wiki"), ("code", "data/code")]


def test_paths_hold_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mixture.with_absolute_paths("a=1:x, b=2:y/z") == f"a=1:{tmp_path}/x,b=2:{tmp_path}/y/z"
    (tmp_path / "mix.txt").write_text("a=1: x\nb=2:/y")
    assert mixture.with_absolute_paths("mix.txt") == f"a=1:{tmp_path}/x,b=2:/y"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        *(("", "expected NAME=SHARE:PATH"), ("a=1:x,b=2", "b=2: expected NAME=SHARE:PATH")),
        *(("a=much:x", "a=much:x: expected NAME=SHARE:PATH"), ("a b=1:x", "a b=1:x: expected NAME=SHARE:PATH")),
        *(("a=-1:x", "a=-1:x: expected a share above 0"), ("a=nan:x", "a=nan:x: expected a share above 0")),
        ("a=1:x,a=2:y", "a=2:y: the name a is there twice"),
        ("a=1:x,b=1e-9:y", "b has 1.0e-09 of the samples; expected at least 1.2e-06"),
    ],
)
def test_a_wrong_list_is_refused(value, fault):
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}"):
        mixture.read(value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_seq_length": 48}, "max_seq_length 48, {wiki} has 32; prepare both with the same --max_seq_length"),
        ({"objective": "causal", "masking": None}, "objective causal, {wiki} has masked; prepare both with"),
        ({"masking": "static", "max_predictions_per_seq": 5}, "masking static, {wiki} has dynamic"),
        ({"vocab_size": 40}, "vocab_sha256 "),
        ({"next_sentence": False}, "next_sentence False, {wiki} has None"),
        ({"splits": {"train": []}}, "the train split of {other} is empty; leave this source out"),
    ],
)
def test_a_source_that_does_not_fit_is_named(folders, tmp_path, changes, words):
    other = shutil.copytree(folders["code"], tmp_path / "other")
    content = json.loads((other / "manifest.json").read_text())
    if "vocab_size" in changes:
        tokens = (other / "vocab.txt").read_bytes().splitlines(keepends=True)[:40]
        (other / "vocab.txt").write_bytes(b"".join(tokens))
        changes = {**changes, "vocab_sha256": hashlib.sha256(b"".join(tokens)).hexdigest()}
    if "splits" in changes:
        changes = {"splits": content["splits"] | changes["splits"]}
    (other / "manifest.json").write_text(json.dumps(content | changes))
    data = DataConfig(mix=f"wiki=0.5:{folders['wiki']},other=0.5:{other}")
    (line,) = (str(each) for each in opened_data(data).problems("train", 0))
    together = "other and wiki do not fit together: " if "splits" not in changes else "other: "
    assert line.startswith(f"--mix={data.mix}: {together}")
    assert words.format(other=other, **folders) in line


def test_identity_has_shares_and_manifests(folders):
    one, two = (opened_data(DataConfig(mix=mix_of(folders, *shares))).identity for shares in ((1, 1), (2, 1)))
    assert [name for name in one if one[name] != two[name]] == ["the source wiki", "the source code"]
    assert one["the vocabulary"] == opened_data(DataConfig(data_dir=folders["wiki"])).identity["the vocabulary"]
