"""Tiles, waves and alignment on a device of round numbers, by hand."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tftrain.plan import products
from tftrain.plan.cluster import A100

# 100 multiprocessors of 1e12 operations a second each, and memory that nothing waits for.
ROUND = dataclasses.replace(A100, name="round", multiprocessors=100, peak_16bit=100, peak_fp32=50)
UNBOUND = 1e30


def seconds(m, n, k, batch=1, item=2, misaligned=0.5, misaligned_batch=0.25, bandwidth=UNBOUND, cluster=ROUND):
    return products.seconds(products.Reach(cluster, 1.0, misaligned, misaligned_batch, bandwidth), m, n, k, batch, item)


def test_whole_waves_of_whole_tiles_reach_the_rate():
    m, n, k = 256 * 10, 128 * 10, 1024
    assert seconds(m, n, k) == pytest.approx(2 * m * n * k / 100e12)
    assert seconds(m, n, k, item=4) == pytest.approx(2 * m * n * k / 50e12)


def test_one_tile_more_than_a_wave_takes_another_wave():
    # So short a sum is not split: 101 tiles of the largest kind are 2 waves, and 202 of half its size, at 0.94, are 3.
    tile = 2 * 256 * 128 * 64 / 1e12
    assert seconds(256 * 100, 128, 64) == pytest.approx(tile)
    assert seconds(256 * 101, 128, 64) == pytest.approx(1.5 / 0.94 * tile)
    # In eighths of a long sum, 808 of them are 9 waves.
    assert seconds(256 * 101, 128, 8192) == pytest.approx(9 / 8 * 128 * tile)


def test_a_row_more_than_whole_tiles_costs_a_tile():
    assert seconds(256 * 100 + 1, 128, 8192) == seconds(256 * 101, 128, 8192)


def test_each_halving_of_alignment_costs_its_share():
    aligned = seconds(2560, 1280, 1024)
    for k, halvings in ((1024 - 8, 0), (1024 - 4, 1), (1024 - 2, 2), (1024 - 1, 3)):
        assert products.missing_alignment(16, 2, 1280, k) == halvings
        assert seconds(2560, 1280, k) == pytest.approx(aligned / 0.5**halvings)
        assert seconds(2560, 1280, k, batch=10) == pytest.approx(10 * aligned / 0.25**halvings)
    # Half as many numbers of twice the size are as well aligned.
    assert products.missing_alignment(16, 4, 1020) == 0


def test_a_long_sum_is_split_where_tiles_do_not_fill_the_device():
    # 4 x 8 tiles of the largest kind leave 68 of 100 units idle.
    assert seconds(1024, 1024, 1 << 20) < 0.6 * 2 * 256 * 128 * (1 << 20) / 1e12


def test_thin_products_wait_for_memory():
    bytes_moved = 2 * (4096 * 1 + 1 * 4096 + 4096 * 4096)
    assert seconds(4096, 4096, 1, bandwidth=1e9) == pytest.approx(bytes_moved / 1e9)


def test_a_cpu_follows_its_curve_between_measured_sizes():
    cpu = dataclasses.replace(ROUND, multiprocessors=0, curve=((64, 0.2), (256, 0.6)))
    for size, share in ((16, 0.2), (64, 0.2), (128, 0.4), (256, 0.6), (1024, 0.6)):
        assert seconds(size, size, size, cluster=cpu) == pytest.approx(2 * size**3 / (100e12 * share))


@given(some.integers(1, 5000), some.integers(1, 5000), some.integers(1, 5000), some.integers(1, 64))
def test_never_faster_than_the_rate(m, n, k, batch):
    found = seconds(m, n, k, batch)
    assert math.isfinite(found)
    assert found >= 2 * m * n * k * batch / 100e12
