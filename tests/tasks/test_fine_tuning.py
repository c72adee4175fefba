"""Fine-tuning: losses against formulas in fp64, the same numbers for every layout, the best checkpoint, early ends."""

import json
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.finetune import files
from tests.formats.models import DATA
from tests.kit import pictures, runs
from tests.kit.ranks import run_ranks
from tests.kit.runs import read_rows
from tftrain.checkpoint import folder as checkpoints
from tftrain.checkpoint.scores import best_step
from tftrain.config.fields import ConfigError
from tftrain.data import pipeline
from tftrain.formats import run_folder
from tftrain.inputs.inputs import Inputs
from tftrain.observe import trackers
from tftrain.parallel.mesh import Mesh
from tftrain.tasks import make_task, sources
from tftrain.train import seeds

SMALL = (
    *("--num_hidden_layers=2", "--hidden_size=32", "--num_attention_heads=2", "--optimizer=adamw"),
    *("--learning_rate=0.003", "--initializer_range=0.1", "--log_every=1", "--global_batch_size=8"),
)
OUTPUT_SHAPES = {  # with 16 tokens
    "classification": (2,),
    "multi_label": (len(files.WORDS),),
    "regression": (1,),
    "token_classification": (16,),
    "question_answering": (16, 2),
    "embedding": (2, 32),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The flags of each task, with small files; the held-out split does not divide into whole batches."""
    given = files.write_tasks(tmp_path_factory.mktemp("labelled"))
    return {name: (*SMALL, *of_task) for name, of_task in given.items()}


def configured(args, *more):
    return runs.configured(*more, base=args)


def train(args, *more):
    return runs.train_alone(*more, base=args)


def batch_of(config, task, count):
    source = sources.open_source(task, Inputs.open(config).data[0], "eval", 1)
    return next(iter(pipeline.eval_batches(source, config.data, count, 0, count)))


@pytest.mark.parametrize("name", [*OUTPUT_SHAPES, "completion"])
def test_files_with_shares_are_joined(data, tmp_path, name):
    paths = [files.write_completions(tmp_path / f"{number}.jsonl", 30, number) for number in (1, 2)]
    args = ("--task=completion", f"--init_checkpoint=hf:{DATA / 'hf_llama'}", "--max_seq_length=48")
    if name != "completion":
        paths = [flag.partition("=")[2] for flag in data[name] if flag.startswith(("--train_file", "--eval_file"))]
        args = [flag for flag in data[name] if not flag.startswith(("--train_file", "--eval_file"))]

    def opened(*more):
        config = runs.checked(*more, "--output_dir=unused", base=args)
        opened, task = Inputs.open(config).data[0], types.SimpleNamespace(config=config)
        return sources.open_source(task, opened, "train", 1), config.model.labels

    joined, labels = opened(f"--mix=a=1:{paths[0]},b=1:{paths[1]}")
    begin, classes = 0, [f"--labels={label}" for label in labels]
    for path in paths:
        alone, _ = opened(f"--train_file={path}", *classes)
        found = joined.batch(begin, alone.num_examples, lambda rows: rows)
        for feature, values in alone.batch(0, alone.num_examples, lambda rows: rows).items():
            np.testing.assert_array_equal(found[feature], values)
        begin += alone.num_examples
    assert (joined.num_examples, sum(joined.mixture.sizes)) == (begin, begin)


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def expected_loss(name, outputs, batch):
    """Returns the sum of losses and of weights, by the formulas of the docstrings, in fp64."""
    labels, weights = batch.get("labels"), batch["example_weights"].astype(np.float64)
    if name == "classification":
        return -(log_softmax(outputs)[np.arange(len(labels)), labels] * weights).sum(), weights.sum()
    if name == "multi_label":
        each = np.log1p(np.exp(outputs)) - labels * outputs
        return (each.mean(-1) * weights).sum(), weights.sum()
    if name == "regression":
        return ((outputs[:, 0] - labels) ** 2 * weights).sum(), weights.sum()
    if name == "token_classification":
        kept = (labels >= 0) * weights[:, None]
        found = np.take_along_axis(log_softmax(outputs), np.maximum(labels, 0)[..., None], -1)[..., 0]
        return -(found * kept).sum(), kept.sum()
    if name == "question_answering":
        total = 0.0
        for row in range(len(labels)):
            length = batch["input_mask"][row].sum()
            ends = [log_softmax(outputs[row, :length, side])[labels[row, side]] for side in (0, 1)]
            total -= np.mean(ends) * weights[row]
        return total, weights.sum()
    mask = batch["input_mask"].reshape(-1, 16, 1).astype(np.float64)
    mean = (outputs * mask).sum(1) / mask.sum(1)
    unit = (mean / np.linalg.norm(mean, axis=-1, keepdims=True)).reshape(-1, 2, mean.shape[-1])
    real = weights > 0
    ids = batch["text_ids"][real]
    same = (ids[:, :1] == ids[:, 0]) | (ids[:, :1] == ids[:, 1]) | (ids[:, 1:] == ids[:, 1])
    scores = np.where(same & ~np.eye(len(ids), dtype=bool), -np.inf, unit[real, 0] @ unit[real, 1].T / 0.05)
    return -np.diag(log_softmax(scores)).sum(), real.sum()


@pytest.mark.parametrize("name", OUTPUT_SHAPES)
def test_losses_are_those_of_the_formulas(data, name, tmp_path):
    config = configured(data[name], f"--output_dir={tmp_path}")
    task = make_task(config, Mesh())
    batch = batch_of(config, task, 24)
    sums = task.compute(batch)
    arrays = {key: tensor.numpy() for key, tensor in batch.items()}
    assert 0 < arrays["example_weights"].sum() <= 24
    states, _ = encoded(task, batch)
    outputs = states.numpy().astype(np.float64)
    if getattr(task.model, "classifier", None) is not None:
        kernel, bias = (each.numpy().astype(np.float64) for each in task.model.classifier.weights)
        outputs = outputs @ kernel + bias
    loss, weight = expected_loss(name, outputs, arrays)
    assert float(sums["weight"]) == pytest.approx(weight)
    assert float(sums["loss_sum"]) == pytest.approx(loss, rel=2e-5)
    assert sums["outputs"].shape[1:] == OUTPUT_SHAPES[name]


def test_each_of_two_texts_that_is_cut_counts(data, tmp_path, caplog):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"text": "key " * 7, "text_pair": "list " * 7}) + "\n")
    more = (f"--output_dir={tmp_path}", f"--eval_file={path}", "--max_seq_length=8")
    config = configured(data["embedding"], *more)
    with caplog.at_level("INFO"):
        sources.open_source(make_task(config, Mesh()), Inputs.open(config).data[0], "eval", 1)
    assert "eval: 2 of 2 texts are longer than --max_seq_length=8" in caplog.text


def encoded(task, batch):
    """Returns what the classifier reads, and the pooled token."""
    texts = {key: tf.reshape(batch[key], [-1, 16]) for key in ("input_ids", "input_mask", "segment_ids")}
    states, pooled = task.model.encode(texts)
    return (states if pooled is None else pooled), pooled


ONE_LAYER = ("--num_hidden_layers=1",)
SCORED = (*ONE_LAYER, "--max_steps=8", "--eval_every=2", "--checkpoint_every=4")


@pytest.fixture(scope="module")
def scored(data, tmp_path_factory):
    """The folder of a run with four evaluations, and a checkpoint after the second."""
    folder = tmp_path_factory.mktemp("scored") / "run"
    assert train(data["classification"], *SCORED, f"--output_dir={folder}") == 0
    return folder


def test_predictions_of_a_forgotten_evaluation_do_not_stay(data, scored, tmp_path):
    shutil.copytree(scored, tmp_path, dirs_exist_ok=True)
    evaluations = [{"step": 4, "value": 2.0}, {"step": 8, "value": 3.0}]
    (tmp_path / "best.json").write_text(json.dumps({"metric": "accuracy", "evaluations": evaluations}))
    (early,) = [path for path in checkpoints.find(tmp_path) if checkpoints.order(path)[0] == 4]
    assert (tmp_path / "predictions.jsonl").exists()
    # None of this run's scores is as good as that of step 4, so that nothing is written in their place.
    assert train(data["classification"], *SCORED, f"--output_dir={tmp_path}", f"--resume={early}") == 0
    assert best_step(tmp_path) == 4
    assert not [name for name in ("predictions.jsonl", "confusion_matrix.png") if (tmp_path / name).exists()]


def values(folder, name):
    return [row[name] for row in read_rows(folder) if name in row]


@pytest.mark.multirank
@pytest.mark.nightly  # tests/tasks/test_custom.py has two stages, tests/train/test_cached_gradients.py embeddings.
def test_four_ranks_learn_and_score_as_one_does(data, tmp_path):
    one, four = tmp_path / "one", tmp_path / "four"
    args = (*data["question_answering"], "--max_steps=8", "--eval_every=4")
    layout = ("--pipeline_parallel_size=2", "--tensor_parallel_size=2", "--sequence_parallel")
    assert train(args, f"--output_dir={one}") == 0
    run_ranks(4, ["-m", "tftrain.run", *args, *layout, f"--output_dir={four}"], seconds=300)
    for field in ("loss", "eval_task_loss", "eval_f1", "eval_exact_match"):
        np.testing.assert_allclose(values(four, field), values(one, field), rtol=1e-4, atol=1e-6)
    predictions = [(folder / "predictions.jsonl").read_text().splitlines() for folder in (one, four)]
    alone, together = ([json.loads(line)["label"] for line in lines] for lines in predictions)
    assert alone == together


def test_a_run_learns_and_keeps_the_best_checkpoint(data, tmp_path, drawn_pictures):
    more = ("--max_steps=80", "--eval_every=20", "--keep_last=1", "--log_every=80", f"--output_dir={tmp_path}")
    assert train(data["classification"], *ONE_LAYER, *more) == 0
    scores = json.loads((tmp_path / "best.json").read_text())
    found = [each["value"] for each in scores["evaluations"]]
    assert scores["metric"] == "accuracy"
    assert len(found) == 4
    best = 20 * (1 + found.index(max(found)))
    assert max(found) >= 0.9
    kept = {checkpoints.order(path)[0] for path in checkpoints.find(tmp_path)}
    assert kept == {best, 80}
    assert checkpoints.order(run_folder.find(tmp_path))[0] == best
    for picture in ("confusion_matrix.png", "score_curve.png", "loss_curve.png"):
        assert pictures.is_drawn(tmp_path / picture)
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    right = [json.loads(line)["prediction"] == json.loads(line)["label"] for line in lines]
    assert np.mean(right) == pytest.approx(max(found))
    # The evaluation of that checkpoint gives that score again, with the flags and the tokenizer of the run.
    row = runs.evaluate(runs.checked("--mode=evaluate", "--resume=best", f"--output_dir={tmp_path}", base=()))
    assert row.scores["eval_accuracy"] == pytest.approx(max(found))


def test_a_run_that_does_not_get_better_ends_and_stays_at_its_end(data, tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(trackers.Trackers, "close", lambda self, pictures, line, code: ended.append(code))
    more = ("--max_steps=40", "--eval_every=2", "--early_stopping=3", "--learning_rate=1e-9", "--warmup_steps=0")
    config = configured(data["classification"], *ONE_LAYER, *more, f"--output_dir={tmp_path}", "--report_to=csv")
    assert runs.train(config) == 0
    assert read_rows(tmp_path)[-1]["step"] == 8
    assert ended == [0]  # for a tracker, too
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert runs.train(config) == 0
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_resumed_run_knows_the_scores_before(data, scored, tmp_path):
    shutil.copytree(scored, tmp_path, dirs_exist_ok=True)
    for path in checkpoints.find(tmp_path):
        if checkpoints.order(path)[0] > 4:
            shutil.rmtree(path)
    assert checkpoints.find(tmp_path)
    train(data["classification"], *SCORED, f"--output_dir={tmp_path}")
    assert (tmp_path / "best.json").read_bytes() == (scored / "best.json").read_bytes()
    assert values(tmp_path, "loss") == values(scored, "loss")


def test_a_run_is_judged_by_the_documents_that_it_finds(data, tmp_path):
    corpus = files.write_corpus(tmp_path, documents=30, queries=5)
    pairs = [flag for flag in data["embedding"] if "eval_file" not in flag]
    train(pairs, *corpus, *ONE_LAYER, "--max_steps=2", "--eval_every=1", f"--output_dir={tmp_path}")
    assert json.loads((tmp_path / "best.json").read_text())["metric"] == "ndcg_at_10"
    assert [row["eval_task_loss"] for row in read_rows(tmp_path) if "eval_ndcg_at_10" in row] == [None, None]
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert [line["query"] for line in lines] == [f"q{number}" for number in range(5)]
    row = next(row for row in reversed(read_rows(tmp_path)) if "consumed_tokens" in row)
    expected = row["tokens_per_sec"] / row["samples_per_sec"] * row["consumed_samples"]
    assert row["consumed_tokens"] == pytest.approx(expected), "of both texts of a pair"
    evaluated = ("--mode=evaluate", "--resume=best", f"--output_dir={tmp_path}")
    output = runs.run_alone(*evaluated, "--micro_batch_size=7", "--global_batch_size=7")
    best = max(values(tmp_path, "eval_ndcg_at_10"))
    assert f"ndcg at 10              {best:.4f}" in output
    assert "held-out examples       35" in output
    assert "task loss" not in output
    with pytest.raises(ConfigError, match="--eval_examples=5: expected 0: the whole --eval_corpus is ranked"):
        configured(pairs, *corpus, "--eval_examples=5", f"--output_dir={tmp_path}")
    # A classifier ranks candidates; its loss and accuracy are those of the pairs.
    reranker, folder = [flag for flag in data["classification"] if "eval_file" not in flag], tmp_path / "reranker"
    train(reranker, *corpus, *ONE_LAYER, "--max_steps=1", f"--output_dir={folder}")
    (row,) = [row for row in read_rows(folder) if "eval_ndcg_at_10" in row]
    assert row["eval_task_loss"] > 0
    assert 0 < row["eval_accuracy"] < 1


@pytest.mark.nightly
def test_seeds_give_a_mean(data, tmp_path):
    config = configured(data["classification"], "--max_steps=2", "--seeds=2", "--seed=7", f"--output_dir={tmp_path}")
    assert seeds.train(config, Inputs.open(config), Mesh()) == 0
    found = json.loads((tmp_path / "seeds.json").read_text())
    assert set(found["scores"]) == {"7", "8"}
    assert found["mean"] == pytest.approx(np.mean(list(found["scores"].values())))
    assert found["standard_deviation"] == pytest.approx(np.std(list(found["scores"].values()), ddof=1))
    assert values(tmp_path / "seed_7", "loss") != values(tmp_path / "seed_8", "loss")


def test_a_seed_without_scores_is_left_out_of_the_mean(tmp_path):
    (tmp_path / "seed_2").mkdir()
    evaluations = [{"step": 4, "value": 0.5}]
    (tmp_path / "seed_2/best.json").write_text(json.dumps({"metric": "f1", "evaluations": evaluations}))
    seeds.report(tmp_path, {seed: str(tmp_path / f"seed_{seed}") for seed in (1, 2)})
    found = json.loads((tmp_path / "seeds.json").read_text())
    assert (found["metric"], found["scores"]) == ("f1", {"2": 0.5})


def test_gradients_of_looked_up_rows_may_stay_rows(data, scored, tmp_path):
    more = ("--sparse_as_dense=false", "--eval_every=-1", f"--output_dir={tmp_path}")
    train(data["classification"], *SCORED, *more)
    np.testing.assert_allclose(values(tmp_path, "loss")[:3], values(scored, "loss")[:3], rtol=1e-5)
