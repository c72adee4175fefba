"""Samples and positions against a plain list, and batches whose samples are at the positions that remain."""

import itertools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from tests.data.test_length_buckets import LENGTHS, Lengths
from tests.data.test_mixture import SEED, mixed, source_of
from tftrain.config.data import DataConfig
from tftrain.config.ramp import Ramp
from tftrain.data import pipeline
from tftrain.data.left_out import NOTHING, LeftOut
from tftrain.data.length_buckets import LengthBuckets
from tftrain.data.order import example_ids

MOST, MIXTURE = 800, mixed([3, 1, 2])
rollbacks = strategies.lists(strategies.tuples(strategies.integers(0, 200), strategies.integers(1, 60)), max_size=5)


def remaining(windows):
    """The positions in no window, by the definition."""
    return [n for n in range(MOST) if not any(start <= n < stop for start, stop in windows)]


@hypothesis.given(rollbacks)
def test_samples_are_at_the_positions_that_remain(ranges):
    left_out, expected = NOTHING, list(range(MOST))
    for first, count in ranges:
        left_out = left_out.without(first, first + count)
        # By hand: these samples are gone, and with them every position between the first and the last.
        start, last = expected[first], expected[first + count - 1]
        expected = [n for n in expected if not start <= n <= last]
        assert left_out.windows[-1] == (start, last + 1)
        assert left_out.positions(np.arange(len(expected))).tolist() == expected == remaining(left_out.windows)
    assert int(left_out.positions(0)) == expected[0]
    assert left_out.positions(np.array([], np.int64)).size == 0


@hypothesis.given(rollbacks, strategies.integers(0, 100))
def test_sums_are_those_over_the_positions_that_remain(ranges, samples):
    left_out = NOTHING
    for first, count in ranges:
        left_out = left_out.without(first, first + count)
    positions = np.array(remaining(left_out.windows)[:samples], np.int64)
    found = source_of(MIXTURE.example_numbers(positions, SEED), np.array([0, 100, 200]))
    assert left_out.total(samples, MIXTURE.consumed).tolist() == np.bincount(found, minlength=3).tolist()


class Numbers:
    """A source whose examples say their number."""

    num_examples, widths, is_remote, max_seq_length, mixture = 37, {"number": None}, False, 8, None

    def example_numbers(self, samples, seed):
        return example_ids(samples, self.num_examples, seed)

    def batch(self, first_sample, count, order):
        numbers = tf.numpy_function(lambda first: order(np.arange(first, first + count)), [first_sample], tf.int64)
        return {"number": tf.cast(numbers, tf.int32)}


@pytest.mark.parametrize("first", [0, 24])
def test_batches_of_a_ramp_and_of_any_rank_leave_the_windows_out_over_epochs(first):
    left_out, ramp = LeftOut(((10, 17), (60, 93))), Ramp(4, 4, 40, 12)
    halves = (lambda size: (0, size // 2), lambda size: (size // 2, size))
    seen = [pipeline.ramped_batches(Numbers(), DataConfig(), SEED, first, ramp, share, 9, left_out) for share in halves]
    found = [batch["number"].numpy().tolist() for both in zip(*seen, strict=True) for batch in both]
    found = list(itertools.chain.from_iterable(found))
    positions = np.array(remaining(left_out.windows))[first : first + len(found)]
    assert found == example_ids(positions, Numbers.num_examples, SEED).tolist()


@hypothesis.given(rollbacks, strategies.integers(1, 5))
def test_batches_by_length_are_arranged_over_the_positions(ranges, batch):
    left_out = NOTHING
    for first, count in ranges:
        left_out = left_out.without(first, first + count)
    whole, found = (LengthBuckets(Lengths(43), SEED, LENGTHS, batch, each) for each in (NOTHING, left_out))
    positions = np.array(remaining(left_out.windows))
    at = [whole.examples(positions[n : n + 1])[0] for n in range(60)]
    assert found.examples(np.arange(60)).tolist() == at
    longest = found._source.lengths(np.array(at[20 : 20 + batch])).max()
    assert LENGTHS[found.bucket(20)] == min(length for length in LENGTHS if length >= longest)
