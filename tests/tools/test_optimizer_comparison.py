"""The comparison of optimizers tunes them alike, and reads the tokens to a loss from the curves of finished runs."""

import json
import sys

import pytest

from tools import optimizer_comparison as comparison

NAMES = tuple(comparison.COLORS)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs that are made up: each optimizer has a best learning rate, and AdamW one of the embeddings."""
    best, started = {"lamb": 4e-2, "adamw": 1.6e-2, "muon": 4e-3}, []
    of_embeddings = {"lamb": 1, "adamw": 4, "muon": 1}

    def prepare(output_dir, **flags):
        output_dir.mkdir(parents=True)
        (output_dir / "manifest.json").write_text("{}")

    def train(optimizer, learning_rate, seed, output_dir, param_groups="embeddings/* rate=1", **flags):
        output_dir.mkdir(parents=True)
        name, rate = optimizer, float(learning_rate)
        multiplier = float(param_groups.removeprefix("embeddings/* rate="))
        started.append((name, rate, seed, multiplier))
        floor = 4 + abs(rate / best[name] - 1) + abs(multiplier / of_embeddings[name] - 1) / 10 + 0.01 * seed
        rows = [{"step": 2, "memory_moments_bytes": 2e6}]
        for step in range(0, comparison.STEPS + 1, comparison.EVAL_EVERY):
            rows += [{"step": step, "eval_lm_loss": floor + 2 - 2 * step / comparison.STEPS, "step_time_s": None}]
        rows += [{"step": step, "step_time_s": 0.5} for step in (10, 20)]
        (output_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison.notebook, "prepare", prepare)
    monkeypatch.setattr(comparison.notebook, "train", train)
    return started


def test_values_grow_alike_until_no_best_one_lies_at_an_edge_and_the_best_have_three_seeds(runs, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--output=picture.png"])
    comparison.main()
    first = {
        name: sorted(rate for other, rate, seed, at in runs if (other, seed, at) == (name, 1, 1)) for name in NAMES
    }
    assert first["adamw"] == pytest.approx([1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2])
    assert {len(each) for each in first.values()} == {6}
    multipliers = {name: sorted({at for other, _, _, at in runs if other == name}) for name in NAMES}
    assert multipliers["adamw"] == [0.25, 1, 4, 16]
    assert {len(each) for each in multipliers.values()} == {4}
    of_best = [(seed, at) for name, rate, seed, at in runs if name == "adamw" and rate == pytest.approx(1.6e-2)]
    assert sorted(of_best) == [(1, 0.25), (1, 1), (1, 4), (1, 16), (2, 1), (3, 1)]
    output = capsys.readouterr().out
    # The losses of seeds 1 to 3 fall to 4.01 to 4.03, but AdamW's to 4.085 to 4.105, and to 4.01 with the multiplier 4.
    assert "| optimizer | learning rate | thousand tokens to a loss of 4.11 " in output
    assert "| AdamW | 0.016 | 407 ± 2 | 4.095 ± 0.010 | 0.500 | 2.0 |" in output
    assert "| Muon | 0.004 | 391 ± 2 | 4.020 ± 0.010 | 0.500 | 2.0 |" in output
    assert "| AdamW | 0.25: 4.104, 1: 4.085, **4: 4.010**, 16: 4.310 |" in output
    assert "thousand tokens to 4.11 with the best multiplier: LAMB 389, AdamW 389, Muon 389" in output
    done = len(runs)
    assert done == len(set(runs))
    comparison.main()
    assert len(runs) == done


def test_tokens_to_a_loss_lie_between_two_evaluations():
    assert comparison.tokens_to([(0, 8.0), (100, 6.0), (200, 5.0)], 5.5) == 150
