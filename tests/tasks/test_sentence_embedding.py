"""Embeddings from a file to scores: runs of each kind of loss, their evaluation, and files with shares."""

import json
import re

import numpy as np
import pytest

from tests.checkpoint import states
from tests.finetune import files
from tests.kit import programs, runs
from tests.kit.ranks import run_ranks
from tftrain.checkpoint import folder as checkpoints
from tftrain.plan.workload import from_config

SMALL = (
    *("--task=embedding", "--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--optimizer=adamw"),
    *("--learning_rate=0.003", "--max_seq_length=16", "--log_every=1", "--global_batch_size=8", "--eval_every=4"),
)


def row(number, loss):
    """Returns a row with one to three hard negatives, and what else the loss takes."""
    words = np.random.default_rng(number).choice(files.WORDS, 12).tolist()
    count = 1 + number % 3
    made = {
        "query": f"{words[0]} {number}",
        "pos": words[1:3],
        "neg": [f"{each} {number}" for each in words[4:][:count]],
    }
    if loss in ("kl", "margin_mse"):
        made |= {"pos": words[1], "score": [1.0, *(0.1 * place for place in range(count))]}
    elif loss in ("cosent", "cosine"):
        made |= {"score": number % 5 / 4}
    return made


@pytest.fixture
def given(tmp_path):
    def flags(loss, *more):
        files.write_vocabulary(tmp_path)
        for split, count in (("train", 20), ("eval", 11)):
            lines = (json.dumps(row(number, loss)) + "\n" for number in range(count))
            (tmp_path / f"{split}.jsonl").write_text("".join(lines))
        paths = (f"--{split}_file={tmp_path}/{split}.jsonl" for split in ("train", "eval"))
        named = (f"--embedding_loss={loss}", f"--tokenizer_dir={tmp_path}", f"--output_dir={tmp_path}/run")
        return (*SMALL, *paths, *named, *more)

    return flags


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "more", "texts"),
    [
        ("in_batch", ("--negatives=1", "--matryoshka_dims=8,16"), 3),
        ("cosent", (), 2),
        ("margin_mse", (), 5),
    ],
)
def test_a_run_is_evaluated_with_another_micro_batch(given, tmp_path, loss, more, texts):
    base = given(loss, *more)
    config = runs.checked("--micro_batch_size=2", "--max_steps=4", base=base)
    assert from_config(config, 1).sequences == texts
    assert config.fine_tuning.negatives == (texts - 2 or None)  # Earlier checkpoints know only pairs.
    assert runs.train(config) == 0
    trained = runs.read_rows(tmp_path / "run")
    evaluated = next(each for each in trained if "eval_task_loss" in each)
    again = runs.evaluate(runs.checked("--micro_batch_size=8", "--mode=evaluate", base=base))
    assert again.means["eval_task_loss"] == pytest.approx(evaluated["eval_task_loss"], rel=1e-5)
    assert 0 < evaluated["eval_task_loss"] < 20
    steps = [each for each in trained if "task_loss" in each and "step_time_s" in each]
    assert len(steps) == 4
    assert ("task_accuracy" in steps[0]) == (loss != "cosent")
    scores = json.loads((tmp_path / "run" / "best.json").read_text())
    assert scores["metric"] == ("spearman" if loss == "cosent" else "recall_at_1")
    predictions = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    for each in predictions:  # Held-out samples have all their negatives.
        assert np.size(each["prediction"]) == (1 if texts == 2 else 4)
        assert len(each["texts"]) == 1 + np.size(each["prediction"])


@pytest.mark.slow
@pytest.mark.multirank
@pytest.mark.parametrize("by", ["batch", pytest.param("sample", marks=pytest.mark.nightly)])
def test_files_with_shares_train_alike_on_any_ranks_and_after_a_resume_and_serve(given, tmp_path, by):
    base = [flag for flag in given("in_batch") if not flag.startswith(("--train_file", "--output_dir"))]
    pairs = [{"anchor": f"list {number}", "positive": f"{number} map"} for number in range(9)]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    base += [f"--mix=a=3:{tmp_path}/train.jsonl,b=1:{tmp_path}/b.jsonl", f"--mix_by={by}"]
    output = {}

    def steps(name, ranks, micro_batch):
        flags = (*base, f"--micro_batch_size={micro_batch}", f"--output_dir={tmp_path / name}", "--checkpoint_every=4")
        if ranks == 1:
            output[name] = runs.run_alone(*flags, "--max_steps=8")
        else:
            output[name] = run_ranks(ranks, ["-m", "tftrain.run", *flags, "--max_steps=8"])
        found = [each for each in runs.read_rows(tmp_path / name) if "step_time_s" in each]
        return [{key: value for key, value in each.items() if key.startswith("task_loss")} for each in found]

    whole, small = steps("whole", 1, 8), steps("small", 2, 2)
    states.begun_from(checkpoints.find(tmp_path / "whole")[0], tmp_path / "resumed")
    for expected, found in zip(2 * whole, [*small, *steps("resumed", 1, 4)], strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
        assert sorted(found.values())[1] == pytest.approx(found["task_loss"])
        assert len(found) == (2 if by == "batch" else 3)  # A batch of one file has no loss of another.
    a, b = map(int, re.search(r"mixture: a 75.00% .*?\((\d+)\).* b 25.00% .*?\((\d+)\)", output["small"]).groups())
    assert (a + b, abs(a - 48) <= 8) == (64, True)
    assert "--mix: 37 of 49 samples have fewer than 3 hard negatives" in output["whole"]
    for program, flags in (("run", "--mode=evaluate"), ("predict", "list")):
        programs.done(program, f"--output_dir={tmp_path}/whole {flags}")
    programs.done("plan", " ".join([*base, "--vocab_size=99", "--micro_batch_size=1"]))
