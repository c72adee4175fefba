"""The order of the examples is a keyed permutation of each epoch."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tftrain.data.order import derive_key, example_ids

sizes = st.integers(1, 3000)
seeds = st.integers(0, 2**31 - 1)


def epoch(size, seed, number):
    return example_ids(np.arange(number * size, (number + 1) * size), size, seed)


@settings(max_examples=60)
@given(sizes, seeds, st.integers(0, 1 << 30))
def test_every_example_occurs_once_in_an_epoch(size, seed, number):
    np.testing.assert_array_equal(np.sort(epoch(size, seed, number)), np.arange(size))


@settings(max_examples=30)
@given(sizes, seeds, st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_a_sample_does_not_depend_on_the_others(size, seed, samples):
    together = example_ids(np.array(samples), size, seed)
    alone = [example_ids(np.array([sample]), size, seed)[0] for sample in samples]
    np.testing.assert_array_equal(together, alone)


def test_epochs_and_seeds_have_orders_of_their_own():
    # Among independent places a difference of 1 occurs twice in 10,000 steps on average.
    assert (np.abs(np.diff(epoch(10_000, 1, 0))) == 1).sum() < 15
    orders = [epoch(1000, seed, number) for seed in (1, 2) for number in (0, 1)]
    # Two independent permutations agree in one place on average.
    assert all((one == other).sum() < 10 for one, other in itertools.combinations(orders, 2))


@pytest.mark.parametrize("size", [5, 64, 1000])
def test_every_example_is_equally_likely_in_every_place(size):
    epochs = 3000
    first = example_ids(np.arange(epochs) * size, size, 3)
    last = example_ids(np.arange(1, epochs + 1) * size - 1, size, 3)
    for found in (first, last):
        counts = np.bincount(found, minlength=size)
        chi_square = ((counts - epochs / size) ** 2 / (epochs / size)).sum()
        # Mean size - 1, variance 2 (size - 1).
        assert abs(chi_square - (size - 1)) < 5 * np.sqrt(2 * (size - 1))


def test_all_orders_of_four_examples_occur_and_large_numbers_stay_in_range():
    assert len({tuple(epoch(4, 1, number)) for number in range(1000)}) == 24
    size = 2**40 + 3
    found = example_ids(np.array([0, 1, size - 1, size, 2**62]), size, 1)
    assert ((found >= 0) & (found < size)).all()
    assert len(set(found[:3].tolist())) == 3


def test_key_depends_on_every_part_and_their_order():
    keys = [int(derive_key(*parts)) for parts in ((1, 2), (2, 1), (1, 3), (1,), (1, 2, 0), (0, 1, 2))]
    assert len(set(keys)) == len(keys)
