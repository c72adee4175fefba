"""Sums in narrow buffers, where it is known by hand what is rounded away."""

import pytest
import tensorflow as tf

from tftrain.bench import accumulation as table
from tftrain.bench.accumulation import Buffer, errors
from tftrain.bench.config import BenchConfig

FP32, BF16, FP16 = (Buffer(dtype, 1.0) for dtype in ("float32", "bfloat16", "float16"))


def of(*gradients):
    return [tf.constant(gradient, tf.float32) for gradient in gradients]


def test_a_sum_is_rounded_to_the_buffers_digits():
    # Halves are added: 1/2 and 2^-9, of which bf16 with 8 digits keeps 1/2 (a tie goes to even) and fp16 everything.
    found = errors(of([1.0, 0.0], [2.0**-8, 0.0]), [2], [FP32, BF16, FP16])
    exact = 0.5 + 2.0**-9
    assert [points[0]["relative_error"] for points in found] == [0, pytest.approx(2.0**-9 / exact, rel=1e-12), 0]


def test_small_gradients_are_lost_one_by_one():
    # Each of the three is half of the last digit's place of 1/4, a tie, though together they would have counted.
    rest = [[2.0**-9]] * 3
    (points,) = errors(of([1.0], *rest), [1, 4], [BF16])
    assert points[0]["relative_error"] == 0
    assert points[1]["relative_error"] == pytest.approx(3 * 2.0**-9 / (1 + 3 * 2.0**-9), rel=1e-12)


def test_a_loss_scale_keeps_what_fp16_can_not_hold():
    # 2^-26 is a quarter of fp16's smallest number.
    found = errors(of([1.0, 2.0**-26]), [1], [FP16, Buffer("float16", 2.0**15)])
    assert [points[0]["vanished"] for points in found] == [0.5, 0.0]
    assert found[0][0]["relative_error"] == pytest.approx(2.0**-26, rel=1e-6)
    assert found[1][0]["relative_error"] == 0


def test_a_loss_scale_that_is_too_large_leaves_no_sum():
    (points,) = errors(of([4.0], [0.0]), [1, 2], [Buffer("float16", 2.0**14)])
    assert [point["relative_error"] for point in points] == [None, 0.0]


@pytest.mark.nightly
@pytest.mark.slow
def test_every_buffer_adds_up_the_gradients_of_a_small_model(monkeypatch):
    monkeypatch.setattr(table, "COUNTS", (1, 4))
    outcomes = list(table.measure(list(table.ACCUMULATION.rows), BenchConfig(), lambda _: None))
    assert [outcome.error for outcome in outcomes] == [None] * len(table.BUFFERS)
    found = {outcome.row: [record["relative_error"] for record in outcome.records] for outcome in outcomes}
    assert found["fp32"][0] == 0
    # Half of the last digit's place bounds the rounding of one gradient: 2^-24, 2^-9, 2^-12 of it.
    assert 0 < found["fp32"][1] < 4 * 2.0**-24 * 2
    assert 2.0**-11 < found["bf16"][0] < 2.0**-9 < 4 * found["bf16"][1]
    assert 2.0**-14 < found["fp16/32768"][0] < 2.0**-12
