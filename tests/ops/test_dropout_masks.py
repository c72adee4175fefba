"""A dropout mask belongs to seed, step, site and sample, however the batch is split and the step is compiled."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.model.samples import dropout_key
from tftrain.ops.dropout import AxisRange, DropoutKey, dropout_at, of_probabilities, random_bits, reference_dropout

MODES = {
    "eager": lambda function: function,
    "graph": lambda function: tf.function(function, autograph=False),
    "jit": lambda function: tf.function(function, jit_compile=True, autograph=False),
}
SAMPLE_SHAPES = [(8,), (5,), (3, 7), (2, 3, 3), (1,), (257,)]


def mask(samples, sample_shape, rate=0.3, site=6, mode="eager", **key):
    """The dropout of ones, with step and first sample as inputs of the function, as in a train step."""
    whole = dropout_key(**key)

    def drop(step, first_sample):
        ones = tf.ones([samples, *sample_shape])
        return reference_dropout(ones, dropout_at(DropoutKey(whole.seed, step, first_sample), rate, site))

    return MODES[mode](drop)(whole.step, whole.first_sample).numpy()


@pytest.mark.parametrize("shape", SAMPLE_SHAPES)
def test_part_of_a_batch_has_the_mask_of_its_rows(shape):
    whole, part = mask(8, shape), mask(4, shape, first_sample=4)
    np.testing.assert_array_equal(part, whole[4:8])


def test_some_heads_have_their_masks_among_all_heads():
    whole = mask(2, (5, 3, 3))
    part = reference_dropout(tf.ones([2, 2, 3, 3]), dropout_at(dropout_key(), 0.3, 6, AxisRange(3, 5)))
    np.testing.assert_array_equal(part, whole[:, 3:])


@pytest.mark.parametrize("mode", ["graph", "jit"])
@pytest.mark.parametrize("shape", SAMPLE_SHAPES)
def test_masks_are_the_same_bits_in_every_mode(mode, shape):
    key = {"seed": 2**31 - 1, "step": 2**33 + 1, "first_sample": 2**32 - 1}
    np.testing.assert_array_equal(mask(3, shape, mode=mode, **key), mask(3, shape, **key))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_masks_are_the_same_in_every_dtype(dtype):
    kept = reference_dropout(tf.ones([4, 33], dtype), dropout_at(dropout_key(), 0.3, 6)) != 0
    np.testing.assert_array_equal(kept, mask(4, (33,)) != 0)


@pytest.mark.parametrize("changed", [{"seed": 4}, {"step": 6}, {"site": 7}, {"first_sample": 8}])
def test_masks_differ_between_seeds_steps_sites_and_samples(changed):
    first, second = mask(8, (500,)) != 0, mask(8, (500,), **changed) != 0
    # Independent masks agree in 0.7^2 + 0.3^2 = 0.58 of the places, with a deviation of 0.008.
    assert abs(np.mean(first == second) - 0.58) < 5 * 0.008


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_of_zeros_and_mean_are_right(rate):
    dropped = mask(16, (101, 37), rate=rate)
    deviation = math.sqrt(rate * (1 - rate) / dropped.size)
    assert abs(np.mean(dropped == 0) - rate) < 5 * deviation
    assert abs(dropped.mean() - 1) < 5 * deviation / (1 - rate)


def test_elements_and_neighbours_are_uncorrelated():
    kept = (mask(64, (1000,), rate=0.5) != 0) - 0.5
    for lag in (1, 2, 4, 7, 8, 16):
        correlation = np.mean(kept[:, lag:] * kept[:, :-lag]) * 4
        assert abs(correlation) < 5 / math.sqrt(kept[:, lag:].size), lag
    assert abs(np.mean(kept[1:] * kept[:-1]) * 4) < 5 / math.sqrt(kept[1:].size)


def test_gradient_passes_where_the_value_passed():
    x = tf.random.stateless_normal([4, 13], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = reference_dropout(x, dropout_at(dropout_key(), 0.4, 6))
    np.testing.assert_allclose(tape.gradient(y, x), mask(4, (13,), rate=0.4), rtol=1e-6)


def test_inference_and_rate_zero_change_nothing():
    x = tf.ones([2, 3])
    assert reference_dropout(x, dropout_at(None, 0.5, 0)) is x
    assert reference_dropout(x, dropout_at(dropout_key(), 0.0, 0)) is x


def test_site_out_of_range_is_refused():
    with pytest.raises(ValueError, match="65535"):
        random_bits(tf.constant(1), 1, dropout_key(), 65536)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 as in table 2 and figure 2 of the SC11 paper: four words from a counter and a key of words."""
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(right >> 32) ^ counter[1] ^ key[0], right % 2**32, (left >> 32) ^ counter[3] ^ key[1], left % 2**32]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


@pytest.mark.parametrize(("rate", "share"), [(0.1, 26 / 256), (0.5, 0.5), (1 / 512 + 1e-9, 1 / 256), (0.99, 253 / 256)])
def test_probabilities_drop_a_multiple_of_1_in_256_and_keep_the_expectation(rate, share):
    dropout = of_probabilities(dropout_at(dropout_key(), rate, 6))
    dropped = reference_dropout(tf.ones([64, 4001]), dropout).numpy()
    deviation = math.sqrt(share * (1 - share) / dropped.size)
    assert abs(np.mean(dropped == 0) - share) < 5 * deviation
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - share)], rtol=1e-6)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("mode", MODES)
def test_bits_are_philox_of_the_documented_counter(mode, bits):
    """Pins the stream itself: a resumed run must draw what the interrupted one would have, on any version."""
    key = dropout_key(seed=3, step=2**20, first_sample=7)

    def draw(step, first_sample):
        return random_bits(tf.constant(2), 11 * 16 // bits, key._replace(step=step, first_sample=first_sample), 9, bits)

    drawn = MODES[mode](draw)(key.step, key.first_sample).numpy()
    high = 2**20 * 65536 + 9
    for row, sample in enumerate((7, 8)):
        counters = [[sample * 2 + count, 0, high % 2**32, high >> 32] for count in range(2)]
        words = [word for counter in counters for word in philox(counter, [3, 0])]
        parts = [word >> shift & 2**bits - 1 for word in words for shift in range(0, 32, bits)]
        np.testing.assert_array_equal(drawn[row], parts[: 11 * 16 // bits])
