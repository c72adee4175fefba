"""Batches of similar length: every example once an epoch, the same for every layout, and cut to what they hold."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_pipeline import SEED, same
from tests.kit.data_sets import open_source
from tftrain.config.data import DataConfig
from tftrain.data.example_source import ExampleSource
from tftrain.data.length_buckets import WINDOW, LengthBuckets
from tftrain.data.pipeline import train_batches

LENGTHS = (16, 24, 32)
sizes, batches, seeds = st.integers(1, 1500), st.integers(1, 9), st.integers(0, 1 << 31)


class Lengths(ExampleSource):
    """A source of which only the lengths are known."""

    def __init__(self, size, longest=32):
        super().__init__(size, longest, {})
        self.tokens = np.random.default_rng(size).integers(1, longest + 1, size)

    def lengths(self, examples):
        return self.tokens[examples]


@settings(max_examples=60)
@given(sizes, batches, seeds, st.integers(0, 3))
def test_every_example_occurs_once_in_an_epoch(size, batch, seed, epoch):
    buckets = LengthBuckets(Lengths(size), seed, LENGTHS, batch)
    found = buckets.examples(np.arange(epoch * size, (epoch + 1) * size))
    np.testing.assert_array_equal(np.sort(found), np.arange(size))


@settings(max_examples=40)
@given(sizes, batches, seeds, st.integers(0, 2000), st.integers(1, 40))
def test_a_sample_does_not_depend_on_those_that_are_asked_for_with_it(size, batch, seed, first, count):
    buckets = LengthBuckets(Lengths(size), seed, LENGTHS, batch)
    together = buckets.examples(np.arange(first, first + count))
    again = LengthBuckets(Lengths(size), seed, LENGTHS, batch)
    alone = [again.examples(np.array([sample]))[0] for sample in range(first + count - 1, first - 1, -1)]
    np.testing.assert_array_equal(together, alone[::-1])


@settings(max_examples=40)
@given(sizes, batches, seeds, st.integers(0, 300))
def test_a_batch_has_the_smallest_length_that_holds_it(size, batch, seed, number):
    source = Lengths(size)
    buckets = LengthBuckets(source, seed, LENGTHS, batch)
    first = number * batch
    longest = source.lengths(buckets.examples(np.arange(first, first + batch))).max()
    assert LENGTHS[buckets.bucket(first)] == min(length for length in LENGTHS if length >= longest)


@pytest.mark.parametrize(("size", "epochs", "most"), [(20 * WINDOW * 4, 1, 20 * (len(LENGTHS) - 1)), (1003, 4, 50)])
def test_few_batches_have_examples_of_two_lengths(size, epochs, most):
    """In a window at most one for each length but the longest, and those at the ends of an epoch."""
    source, batch = Lengths(size), 4
    buckets, starts = LengthBuckets(source, 1, LENGTHS, batch), range(0, epochs * size - batch + 1, batch)
    lengths = [source.lengths(buckets.examples(np.arange(start, start + batch))) for start in starts]
    assert sum(len(set(np.searchsorted(LENGTHS, each))) > 1 for each in lengths) <= most
    assert {int(buckets.bucket(start)) for start in starts} == {0, 1, 2}


def test_batches_come_in_another_order_in_each_epoch_and_lengths_take_turns():
    buckets = LengthBuckets(Lengths(WINDOW * 4), 1, LENGTHS, 4)
    starts = 4 * np.arange(WINDOW)
    first, second = ([int(buckets.bucket(epoch * WINDOW * 4 + each)) for each in starts] for epoch in (0, 1))
    assert first != second
    assert first != sorted(first)


@pytest.fixture(scope="module", params=["dynamic", pytest.param("static", marks=pytest.mark.nightly)])
def data(request, prepare_config, tmp_path_factory):
    from tftrain.prepare.preparation import prepare

    folder = tmp_path_factory.mktemp("short") / request.param
    prepare(prepare_config(folder, short_seq_prob=0.9, masking=request.param, dupe_factor=None))
    return DataConfig(data_dir=str(folder), seq_length_buckets="16,24")


def source_of(data):
    return open_source(data, "train", 200, SEED)


def batches_of(data, first=0, size=6, start=0, stop=6):
    return train_batches(source_of(data), data, SEED, first, size, start, stop)


def padded(batch, like):
    """Returns a cut batch with padding again."""
    sizes = {name: zip(like[name].shape, value.shape, strict=True) for name, value in batch.items()}
    return {name: np.pad(value, [(0, whole - now) for whole, now in sizes[name]]) for name, value in batch.items()}


@pytest.fixture(scope="module")
def whole(data):
    """The first batches, as one rank reads them."""
    return list(batches_of(data).take(30).as_numpy_iterator())


def test_cut_batches_are_the_padded_ones(data, whole):
    source, lengths = source_of(data), set()
    buckets = LengthBuckets(source, SEED, LENGTHS, 6)
    for number, batch in enumerate(whole):
        expected = {name: value.numpy() for name, value in source.batch(6 * number, 6, buckets.examples).items()}
        same(padded(batch, expected | {"example_weights": np.ones(6)}), expected | {"example_weights": np.ones(6)})
        length, longest = batch["input_ids"].shape[1], batch["input_mask"].sum(1).max()
        assert length == min(each for each in LENGTHS if each >= longest)
        lengths.add(length)
    assert lengths == set(LENGTHS)


def test_ranks_and_readers_and_a_resumed_run_see_the_same_batches(data, whole):
    readers = dataclasses.replace(data, data_readers=4)
    parts = [list(batches_of(readers, 0, 6, *share).take(25).as_numpy_iterator()) for share in ((0, 1), (1, 6))]
    resumed = list(batches_of(data, first=6 * 9).take(16).as_numpy_iterator())
    for step, batch in enumerate(whole[:25]):
        same(batch, {name: np.concatenate([part[step][name] for part in parts]) for name in batch})
        if step >= 9:
            same(batch, resumed[step - 9])


def test_shapes_but_the_length_are_known_before_the_first_batch(data):
    spec = batches_of(data, stop=4).element_spec
    assert spec["input_ids"].shape.as_list() == [4, None]
    assert spec["next_sentence_labels"].shape.as_list() == [4]
