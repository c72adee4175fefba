"""The least bytes of each op against numbers worked out by hand, and rows from flags to figures."""

import numpy as np
import pytest

from tftrain.bench.config import BenchConfig
from tftrain.bench.kernels import table, traffic
from tftrain.bench.kernels.worker import WARM_UP, alternate, figures
from tftrain.bench.table import TableRow
from tftrain.ops.library import candidates
from tftrain.plan.machine import copier

TINY = {"hidden": 64, "heads": 4, "layers": 1, "seq": 16, "vocab": 101}

# 2 samples of 3 rows of 5 columns in fp32: a tensor is 120 bytes, a bias 20, the statistics of its rows 24.
SMALL = {"batch": 2, "elements": 15, "columns": 5, "item": 4}


@pytest.mark.parametrize(
    ("op", "forward", "backward"),
    [
        ("layer_norm", 2 * 120 + 2 * 20 + 2 * 24, 3 * 120 + 3 * 20 + 2 * 24),
        ("rms_norm", 2 * 120 + 20 + 24, 3 * 120 + 2 * 20 + 24),
        ("attention_softmax", 3 * 120 + 2 * 5 * 4, 4 * 120),
        ("attention_softmax_causal", 72 + 2 * 120 + 2 * 5 * 4, 2 * 72 + 2 * 120),  # 3 of 5 keys of the mean query
        ("bias_gelu_tanh", 2 * 120 + 20, 3 * 120 + 2 * 20),
        ("bias_gelu_erf", 2 * 120 + 20, 3 * 120 + 2 * 20),
        ("geglu_tanh", 3 * 120 + 2 * 20, 5 * 120 + 4 * 20),
        ("swiglu", 3 * 120, 5 * 120),
        ("bias_dropout_add", 3 * 120 + 20, 2 * 120 + 20),
    ],
)
def test_the_least_bytes_are_those_of_inputs_and_outputs(op, forward, backward):
    assert [each.bytes(**SMALL) for each in traffic.TRAFFIC[op]] == [forward, backward]


def test_bf16_statistics_stay_fp32():
    half = [each.bytes(**SMALL | {"item": 2}) for each in traffic.TRAFFIC["layer_norm"]]
    assert half == [2 * 60 + 2 * 10 + 2 * 24, 3 * 60 + 3 * 10 + 2 * 24]


def test_the_batch_is_the_smallest_power_of_two_that_moves_the_working_set():
    # A sample of softmax at 12 heads of 128 x 128 in fp32 moves 3 x 786,432 + 512 bytes.
    assert traffic.batch_for("attention_softmax", 12 * 128 * 128, 128, 4, 16 * 2_359_808) == 16
    assert traffic.batch_for("attention_softmax", 12 * 128 * 128, 128, 4, 16 * 2_359_808 + 1) == 32


def test_figures_follow_from_medians():
    timed = {"fused": [1.0, 9.0, 2.0], "reference": [6.0] * 3, "tf_nn": [3.0, 4.0, 4.5], "copy": [20e9] * 3}
    fused, reference, tf_nn = figures(timed, moved=20 * 10**9)
    assert (fused["time_us"], fused["gb_per_s"], fused["share_of_copy"], fused["speedup_over_tf"]) == (2e6, 10, 0.5, 2)
    assert (reference["speedup_over_tf"], tf_nn["speedup_over_tf"]) == (pytest.approx(4 / 6), 1)
    assert fused["speed_change_pct"] == 100
    quartiles = np.quantile(timed["tf_nn"], [0.25, 0.5, 0.75])
    assert fused["base_spread_pct"] == pytest.approx(100 * (quartiles[2] - quartiles[0]) / quartiles[1])
    assert "speed_change_pct" not in tf_nn
    once = next(figures({name: seconds[:1] for name, seconds in timed.items()}, moved=20 * 10**9))
    assert once["base_spread_pct"] is None


def test_an_op_without_its_causal_mask_is_not_an_implementation_of_tensorflow():
    timed = {"fused": [2.0], "reference": [6.0], "tf_nn": [8.0], "not_causal": [3.0], "copy": [20e9]}
    assert [record["speedup_over_tf"] for record in figures(timed, moved=1)] == [3, 1, 0.75, 2]


def test_implementations_and_the_copy_take_turns():
    calls = []
    run = {name: lambda name=name: calls.append(name) for name in ("fused", "reference")}
    timed = alternate(run, lambda: calls.append("copy") or 1.0, steps=3)
    assert calls == ["fused", "reference", "copy"] * (WARM_UP + 3)
    assert {name: len(values) for name, values in timed.items()} == {"fused": 3, "reference": 3, "copy": 3}


def test_a_copy_copies_everything_whatever_the_number_of_threads(monkeypatch):
    targets, copyto = [], np.copyto
    monkeypatch.setattr(np, "copyto", lambda to, source: targets.append(to.base) or copyto(to, source + 6))
    assert copier(size=2 * 1001, threads=3)() > 0
    assert np.array_equal(targets, np.full([3, 1001], 7))


def measured(op, dtype):
    row = TableRow("row", "row", {"op": op, "dtype": dtype, "sizes": TINY})
    config = BenchConfig(steps=2, working_set_mb=0.05, cpu_threads=1)
    (outcome,) = table.measure([row], config, lambda _: None)
    return outcome


@pytest.mark.slow
@pytest.mark.skipif(not any(path.exists() for path in candidates()), reason="the ops are not built: make setup")
@pytest.mark.parametrize(
    ("op", "dtype", "shape"),
    [
        pytest.param("attention_softmax_causal", "bf16", "16x4x16x16", marks=pytest.mark.nightly),
        pytest.param("layer_norm", "fp32", "8x16x64", marks=pytest.mark.nightly),
        pytest.param("rms_norm", "bf16", "16x16x64", marks=pytest.mark.nightly),
        pytest.param("swiglu", "fp32", "2x16x256", marks=pytest.mark.nightly),
        pytest.param("lamb", "bf16", "89472 in 21", marks=pytest.mark.nightly),
    ],
)
def test_a_row_gives_a_record_for_each_pass_and_implementation(op, dtype, shape):
    outcome = measured(op, dtype)
    assert outcome.error is None
    optimizer = op in traffic.UPDATE_BYTES
    expected = {("update", name) for name in ("fused", "reference")}
    if not optimizer:
        implementations = ["fused", "reference", "tf_nn", *(["not_causal"] if op.endswith("causal") else [])]
        expected = {(name, by) for name in ("forward", "backward") for by in implementations}
    assert {(record["pass"], record["implementation"]) for record in outcome.records} == expected
    for record in outcome.records:
        assert {column.name for column in table.COLUMNS} <= set(record)
        assert (record["op"], record["dtype"], record["shape"]) == (op, dtype, shape)
        assert record["time_us"] > 0
        assert record["share_of_copy"] == pytest.approx(record["gb_per_s"] / record["copy_gb_per_s"])
