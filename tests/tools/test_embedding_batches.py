"""The comparison of batches of pairs: the data, equally many examples, and the recall of vectors."""

import sys

import numpy as np
import pytest

from tools import embedding_batches as batches

FILES = {
    "a.py": '"""Adds all the numbers of a list to one.\n\nThe list must not be empty or nested, see below."""\n'
    'def f():\n    """Only one paragraph of prose is in here."""\n',
    "b.md": "The first paragraph of a page is its title.\n\nThe next one is its text, which is longer than that.\n\n"
    "And one more paragraph belongs to the same text.\n",
    "c.py": '"""Not a module',
}


def test_a_pair_is_the_first_paragraph_and_the_others(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    found = {name: list(batches.pairs_of(tmp_path / name)) for name in FILES}
    assert found == {
        "a.py": [("Adds all the numbers of a list to one.", "The list must not be empty or nested, see below.")],
        "b.md": [
            (
                "The first paragraph of a page is its title.",
                "The next one is its text, which is longer than that. And one more paragraph belongs to the same text.",
            )
        ],
        "c.py": [],
    }


def test_recall_is_that_of_all_ranks_and_a_tie_is_no_hit():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(2, 40, 3))
    vectors[1, 7] = vectors[1, 8]
    cosines = vectors[0] @ vectors[1].T
    ranks = np.array([sum(each >= row[n] for each in row) for n, row in enumerate(cosines)])
    assert batches.recalls(vectors) == {most: pytest.approx(np.mean(ranks <= most)) for most in (1, 10)}
    assert ranks[8] > 1


def test_all_batches_have_equally_many_examples_and_the_best_learning_rate_is_shown(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(batches, "FOLDER", tmp_path)
    monkeypatch.setattr(batches, "RATES", {64: (1e-3,), 4096: (2e-3, 4e-3)})
    monkeypatch.setattr(batches, "write_pairs", lambda: (tmp_path / "held_out.jsonl").write_text(""))
    monkeypatch.setattr(sys, "argv", ["", "--examples=8192", f"--output={tmp_path}/picture.png"])
    started = []

    def run(module, *flags):
        started.append({name: value for name, _, value in (flag.partition("=") for flag in flags)})
        return ""

    good = {"64_0.001_8192", "4096_0.004_8192"}
    monkeypatch.setattr(batches, "run", run)
    monkeypatch.setattr(batches, "vectors", lambda folder, held_out: folder.name in good)
    monkeypatch.setattr(batches, "recalls", lambda is_good: {1: 0.1, 10: 0.3 if is_good else 0.2})
    batches.main()
    sizes = {int(each["--global_batch_size"]) * int(each["--max_steps"]) for each in started}
    assert sizes == {8192}
    assert len(started) == 3
    assert "| 4,096 | 2 | 0.002: 20.0%, 0.004: 30.0% | 30.0% | 10.0% |" in capsys.readouterr().out
    assert (tmp_path / "picture.png").stat().st_size > 1000
