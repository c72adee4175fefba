"""The comparison of optimizers tunes them alike, and reads the tokens to a loss from the curves of finished runs."""

import json
import sys

import pytest

from tools import optimizer_comparison as comparison


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs that are made up: each optimizer has a best learning rate, and learns faster the nearer it is."""
    best, started = {"lamb": 4e-2, "adamw": 1.6e-2, "muon": 4e-3}, []

    def prepare(output_dir, **flags):
        output_dir.mkdir(parents=True)
        (output_dir / "manifest.json").write_text("{}")

    def train(optimizer, learning_rate, seed, output_dir, **flags):
        output_dir.mkdir(parents=True)
        name, rate = optimizer, float(learning_rate)
        started.append((name, rate, seed))
        floor = 4 + abs(rate / best[name] - 1) + 0.01 * seed
        rows = [{"step": 2, "memory_moments_bytes": 2e6}]
        for step in range(0, comparison.STEPS + 1, comparison.EVAL_EVERY):
            rows += [{"step": step, "eval_lm_loss": floor + 2 - 2 * step / comparison.STEPS, "step_time_s": None}]
        rows += [{"step": step, "step_time_s": 0.5} for step in (10, 20)]
        (output_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison.notebook, "prepare", prepare)
    monkeypatch.setattr(comparison.notebook, "train", train)
    return started


def test_rates_grow_alike_until_no_best_one_lies_at_an_edge_and_the_best_have_three_seeds(runs, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--output=picture.png"])
    comparison.main()
    rates = {name: sorted({rate for other, rate, _ in runs if other == name}) for name in comparison.COLORS}
    assert {len(each) for each in rates.values()} == {6}
    assert rates["adamw"] == pytest.approx([1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2])
    assert [seed for name, rate, seed in runs if name == "adamw" and rate == pytest.approx(1.6e-2)] == [1, 2, 3]
    assert len(runs) == len(set(runs)) == 3 * (6 + 2)
    output = capsys.readouterr().out
    # The losses of seeds 1 to 3 fall to 4.01 to 4.03; 4.03 takes all tokens of the third.
    assert "| optimizer | learning rate | thousand tokens to a loss of 4.03 | loss at the end |" in output
    for name, rate in (("LAMB", "0.04"), ("AdamW", "0.016"), ("Muon", "0.004")):
        assert f"| {name} | {rate} | 408 ± 2 | 4.020 ± 0.010 | 0.500 | 2.0 |" in output
    comparison.main()
    assert len(runs) == 24


def test_tokens_to_a_loss_lie_between_two_evaluations():
    assert comparison.tokens_to([(0, 8.0), (100, 6.0), (200, 5.0)], 5.5) == 150
