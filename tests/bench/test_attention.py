"""Table `attention`: rows from flags to figures, and the lines of its picture."""

import pytest

from tftrain.bench import attention as table
from tftrain.bench import picture
from tftrain.bench.config import BenchConfig
from tftrain.bench.table import TableRow
from tftrain.ops.library import candidates

TINY = {"tokens": 256, "heads": 2, "head_size": 16, "rate": 0.1}
needs_ops = pytest.mark.skipif(not any(path.exists() for path in candidates()), reason="the ops are not built")


def record(core, seconds, name="forward", length=128, mb=1.0, spread=0.0):
    times = {"time_us": seconds * 1e6, "time_us_low": seconds * 1e6, "time_us_high": (seconds + spread) * 1e6}
    return {"core": core, "dtype": "fp32", "seq_length": length, "pass": name, "peak_mb": mb, "steps": 5, **times}


def test_the_first_answer_has_the_memory_and_the_others_the_times():
    row = TableRow("flash/fp32/128", "fp32/128", {"core": "flash", "dtype": "fp32", "length": 128})
    answers = [
        {
            "seconds": {"forward": seconds, "backward": 2 * seconds},
            "peak_bytes": {"forward": peak, "backward": 2 * peak},
            "shape": "1x128x2x16",
            "device": "CPU",
        }
        for seconds, peak in ((100.0, 3e6), (1.0, 0.0), (2.0, 0.0), (9.0, 0.0))
    ]
    forward, backward = table.records(row, answers)
    assert (forward["time_us"], forward["peak_mb"]) == (2e6, 3)
    assert (backward["pass"], backward["time_us"], backward["peak_mb"]) == ("backward", 4e6, 6)


def test_speed_is_compared_with_the_fused_softmax_of_the_same_pass():
    base = [record("softmax", 3.0, spread=0.3), record("softmax", 5.0, "backward")]
    flash = record("flash", 2.0)
    table.compare(flash, base)
    assert flash["speed_change_pct"] == pytest.approx(50)
    assert flash["base_spread_pct"] == pytest.approx(10)
    once = record("flash", 2.0)
    table.compare(once, [{**base[0], "steps": 1}])
    assert "base_spread_pct" not in once
    table.compare(base[0], base)
    assert "speed_change_pct" not in base[0]
    causal = record("flash_causal", 2.0)
    table.compare(causal, [*base, record("softmax_causal", 1.0)])
    assert causal["speed_change_pct"] == pytest.approx(-50)


def test_a_line_has_both_passes_of_every_length():
    records = [record("flash", length / 1000, name, length, mb) for length in (256, 128)
               for name, mb in (("forward", 1.0), ("backward", 2.0))]  # fmt: skip
    records.append(record("plain", 1.0))
    assert table.lines(records) == {("flash", "fp32"): [(128, 256.0, 2.0), (256, 512.0, 2.0)]}


def test_the_picture_is_a_png():
    records = [record("flash", 1.0, name, length) for length in (128, 256) for name in table.PASSES]
    assert picture.png(table.draw, records).startswith(b"\x89PNG")


@needs_ops
@pytest.mark.nightly
def test_each_core_gives_a_record_for_each_pass():
    group = [
        TableRow(core, "group", {"core": core, "dtype": "bf16", "length": 64, **TINY})
        for core in ("softmax_causal", "flash_causal", "nosuch")
    ]
    table_cores = table.CORES | {"nosuch": "nosuch"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "CORES", table_cores)
        softmax, flash, nosuch = table.measure(group, BenchConfig(steps=1, cpu_threads=1), lambda _: None)
    assert "nosuch" in nosuch.error
    for outcome in (softmax, flash):
        assert [each["pass"] for each in outcome.records] == ["forward", "backward"]
        assert all(each["time_us"] > 0 and each["peak_mb"] >= 0 for each in outcome.records)
    assert "speed_change_pct" in flash.records[0]
