"""Table `packing`: rows of metrics become figures, and a small run of the whole table."""

import dataclasses

import numpy as np
import pytest

from tftrain.bench import packing as table
from tftrain.bench import picture
from tftrain.bench.config import BenchConfig
from tftrain.bench.tables import TABLES


def metrics(steps, seconds, utilisation):
    """Rows of metrics.jsonl whose rows hold two examples of 100 tokens on average."""
    for step in range(1, steps + 1):
        rate = 4 / seconds
        yield {"step": step, "memory_rank": 0}
        yield {
            "step": step,
            "step_time_s": seconds,
            "samples_per_sec": rate,
            "real_samples_per_sec": 2 * rate,
            "real_tokens_per_sec": 200 * rate,
            "utilisation": utilisation,
            "mlm_loss": 9.0 - step / 10,
        }


def test_a_record_has_the_rates_of_the_median_step():
    found = table.record(list(metrics(22, 0.5, 0.75)), "greedy", 3)
    assert found["rows_per_sec"] == pytest.approx(8)
    assert found["real_samples_per_sec"] == pytest.approx(16)
    assert found["real_tokens_per_sec"] == pytest.approx(1600)
    assert found["utilisation"] == 0.75
    assert found["mlm_loss"] == pytest.approx(np.mean([6.8, 6.9]))
    assert (found["packing"], found["max_sequences_per_pack"]) == ("greedy", 3)


def test_steps_of_different_lengths_count_with_their_mean_and_without_those_that_compile():
    rows = [row for row in metrics(8, 0.5, 0.75) if "loss" in str(row)]
    rows[3].update(step_time_s=None, samples_per_sec=None)
    for row in rows[4:]:
        row.update({name: row[name] / 4 for name in row if name.endswith("per_sec")}, step_time_s=2.0)
    found = table.record(rows, "buckets", 1)
    assert found["rows_per_sec"] == pytest.approx(5 * 4 / (0.5 + 4 * 2.0))
    assert (found["packing"], len(found["losses"])) == ("buckets", 8)


@pytest.mark.parametrize(("share", "ranks", "expected"), [(1, 1, 16), (0.3536, 1, 6), (0.5, 4, 2), (0.01, 1, 1)])
def test_an_update_has_as_many_examples_in_fewer_rows(share, ranks, expected):
    assert table.rows_of_rank(share, ranks) == expected


def test_a_change_is_against_the_median_run_of_the_base():
    runs = [{"real_samples_per_sec": speed} for speed in (30.0, 20.0, 25.0)]
    base = [{"real_samples_per_sec": speed} for speed in (10.0, 12.0, 12.5)]
    found = table.median(runs, base)
    assert found["real_samples_per_sec"] == 25.0
    assert found["real_samples_change_pct"] == pytest.approx(100 * (25 / 12 - 1))
    assert found["base_spread_pct"] == pytest.approx(100 * 2.5 / 12)


def test_the_rates_of_two_runs_are_their_medians():
    runs = [{"rows_per_sec": speed / 2, "real_samples_per_sec": speed, "most": 3} for speed in (30.0, 20.0)]
    found = table.median(runs, runs)
    assert (found["rows_per_sec"], found["real_samples_per_sec"], found["real_samples_change_pct"]) == (12.5, 25.0, 0.0)


def test_the_curve_counts_examples():
    record = table.record(list(metrics(80, 0.5, 0.75)), "greedy", 8)
    examples, losses = table.curve(record, points=10)
    assert examples[0] == pytest.approx(8 * 8 / 2)
    assert losses.tolist() == pytest.approx([np.mean(part) for part in np.array_split(record["losses"], 10)])
    assert picture.png(table.draw, [record]).startswith(b"\x89PNG")


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_packed_rows_hold_more_examples():
    small = "--num_hidden_layers=1 --hidden_size=32 --num_attention_heads=2"
    config = dataclasses.replace(BenchConfig(), steps=12, extra_flags=small)
    outcomes = {outcome.row: outcome for outcome in table.measure(list(TABLES["packing"].rows), config, print)}
    assert not any(outcome.error for outcome in outcomes.values())
    none, buckets, three, eight = (outcomes[name].records[0] for name in table.PACKINGS)
    assert none["utilisation"] < buckets["utilisation"]
    assert none["real_samples_per_sec"] == pytest.approx(none["rows_per_sec"])
    assert none["utilisation"] < 0.5 < three["utilisation"] < 0.95 < eight["utilisation"] <= 1
    in_a_row = eight["real_samples_per_sec"] / eight["rows_per_sec"]
    rows = eight["real_samples_per_step"] / in_a_row
    # Half a row by rounding, and three standard errors: 72 rows of 2.8 examples, which vary by 2.1, show it to 0.24.
    assert rows == pytest.approx(none["real_samples_per_step"] / in_a_row, abs=0.5 + 1.5)
