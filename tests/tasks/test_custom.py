"""--task=MODULE:CLASS: the guide's file and others learn the same in every layout, and errors name the class."""

import json
import random
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.finetune import files
from tests.formats.models import DATA
from tests.kit import programs, runs
from tests.kit.ranks import ROOT, run_ranks
from tests.kit.runs import checked, read_rows
from tftrain import run
from tftrain.checkpoint.errors import CheckpointError
from tftrain.config.fields import ConfigError
from tftrain.config.model import ModelConfig
from tftrain.data import pipeline
from tftrain.finetune import splits
from tftrain.host.user_code import UserCodeError
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import Mesh
from tftrain.tasks import make_task, sources

LENGTH = 12
SMALL = (
    *("--num_hidden_layers=2", "--hidden_size=32", "--num_attention_heads=2", "--initializer_range=0.1"),
    *("--optimizer=adamw", "--learning_rate=0.001", "--log_every=1", "--global_batch_size=8", "--max_steps=4"),
    *(
        "--eval_every=-1",
        f"--max_seq_length={LENGTH}",
        "--train_file=train.jsonl",
        "--eval_file=eval.jsonl",
        "--tokenizer_dir=vocabulary",
    ),
)
ONE_LAYER = "--num_hidden_layers=1"
# A loss over tokens whose numbers differ, on rows that hold two texts; no head; a decoder.
MODULE = """
import json
import numpy as np
import tensorflow as tf
from choices import Choices
from tftrain.tasks import CustomTask

def rows_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]

class Lengths(CustomTask):
    head = ("place", "other")
    minimizes = ("place_loss", "small_loss")
    def read(self, path):
        return self.encode([row["beginning"] for row in rows_of(path)])
    def places(self, batch):
        mask = tf.cast(batch["input_mask"], tf.float32)
        return mask, tf.range(float(self.config.data.max_seq_length)) / 12
    def terms(self, outputs, batch):
        mask, places = self.places(batch)
        return {
            "place_loss": tf.reduce_sum(mask * (outputs[..., 0] - places) ** 2, 1),
            "small_loss": outputs[:, 0, 1] ** 2,
        }
    def counts(self, batch):
        return {"place_loss": tf.reduce_sum(self.places(batch)[0], 1)}

class Packed(Lengths):
    minimizes = ("place_loss",)
    def read(self, path):
        # Two texts in a row, each with the places that it has by itself.
        features, rows = Unpacked.read(self, path), {}
        for name, array in features.items():
            halves = array.reshape(len(array) // 2, 2, 16)[:, :, :8]
            rows[name] = halves.reshape(len(halves), 16)
        rows["sequence_ids"] = np.tile(np.repeat([1, 2], 8), (len(array) // 2, 1))
        rows["position_ids"] = np.tile(np.arange(16) % 8, (len(array) // 2, 1))
        return rows
    def places(self, batch):
        return tf.cast(batch["input_mask"], tf.float32), tf.cast(batch["position_ids"], tf.float32) / 12
    def terms(self, outputs, batch):
        return {"place_loss": super().terms(outputs, batch)["place_loss"]}

class Unpacked(Packed):
    places = Lengths.places
    def read(self, path):
        return self.encode([row["beginning"].split()[0] for row in rows_of(path)])

class Margin(CustomTask):
    minimizes = ("margin_loss",)
    def read(self, path):
        rows = rows_of(path)
        ids = np.zeros([len(rows), 2, 12], np.int32)
        for row, example in enumerate(rows):
            for side, text in enumerate(self.tokenize(example["choices"][:2])):
                ids[row, side, : len(text)] = text[:12]
        labels = np.roll(ids, -1, axis=2)
        labels[..., -1] = -1
        return {"input_ids": ids, "labels": np.where(labels > 0, labels, -1)}
    def terms(self, outputs, batch):
        learned = tf.cast(batch["labels"] >= 0, tf.float32)
        better, worse = tf.unstack(tf.reduce_sum(outputs[..., 0] * learned, 2), axis=1)
        return {"margin_loss": tf.nn.softplus(better - worse)}

class Bare(CustomTask):
    minimizes = ("mean_loss",)
    def read(self, path):
        return self.encode([row["beginning"] for row in rows_of(path)])
    def terms(self, outputs, batch):
        return {"mean_loss": tf.reduce_mean(outputs**2, [1, 2])}

# Faults, one in each class.
class Raises(Bare): read = lambda self, path: rows_of(path)[0]["nothing"]
class NoArrays(Bare): read = lambda self, path: [1]
class Short(Bare): read = lambda self, path: {name: array[:, 1:] for name, array in Bare.read(self, path).items()}
class Unknown(Bare): read = lambda self, path: {k: v + 90 * (k[6:] == "ids") for k, v in Bare.read(self, path).items()}
class Uneven(Bare): read = lambda self, path: {**Bare.read(self, path), "numbers": np.zeros([3])}
class Other(Bare): read = lambda self, path: Bare.read(self, path) | {
    "numbers": np.zeros([len(rows_of(path)), 3 if "train" in path else 2])}
class Nothing(Bare): terms = lambda self, outputs, batch: {}
class Wide(Bare): terms = lambda self, outputs, batch: {"mean_loss": outputs[:, 0]}
class Misspelt(Bare): counts = lambda self, batch: {"mean_lost": 1}
class Divides(Bare): terms = lambda self, outputs, batch: {"mean_loss": outputs[:, 0, 0] / 0 * (1 // 0)}
class Infinite(Bare): terms = lambda self, outputs, batch: {"mean_loss": tf.math.log(outputs[:, 0, 0] * 0)}
class Scored(Bare):
    scored = ("one", "two")
    predict = lambda self, outputs, batch: outputs[:, 0, 0]
    score = lambda self, predictions, examples: {"one": float(len(predictions))}
class Flat(Scored): predict = lambda self, outputs, batch: tf.reshape(outputs[:, :, 0], [-1])
class Taken(Bare):
    reports = ("grad_norm",)
    terms = lambda self, outputs, batch: {**Bare.terms(self, outputs, batch), "grad_norm": outputs[:, 0, 0]}
class TakenByRollbacks(Bare): reports = ("rollbacks",)
class Same(Choices): pass
class Incomplete(CustomTask): minimizes = ("mean_loss",)
class Aimless(Bare): minimizes = ()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with choices.py of the guide, own.py, a vocabulary, and files of examples."""
    folder = tmp_path_factory.mktemp("custom")
    (code,) = re.findall(r"```python choices.py\n(.*?)```", (ROOT / "docs/custom_tasks.md").read_text(), re.DOTALL)
    (folder / "choices.py").write_text(code)
    (folder / "own.py").write_text(MODULE)
    (folder / "broken.py").write_text("1 / 0")
    (folder / "no_tuple.py").write_text(
        "from tftrain.tasks import CustomTask\nclass Task(CustomTask):\n    minimizes = 'loss'\n"
    )
    files.write_vocabulary(folder / "vocabulary")
    return folder


@pytest.fixture
def at(folder, monkeypatch):
    """The folder as the working folder, with the files of examples."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    if not (folder / "train.jsonl").exists():
        import choices

        draw = random.Random(1)
        texts = [" ".join(draw.choices(files.WORDS, k=draw.randint(4, 9))) for _ in range(60)]
        choices.write_examples("train.jsonl", texts[:48], seed=1)
        choices.write_examples("eval.jsonl", texts[48:], seed=2)
    return folder


def configured(name, output_dir, *more):
    return checked(f"--task={name}", f"--output_dir={output_dir}", *more, base=SMALL)


def train(name, output_dir, *more):
    """Trains on one rank, and returns the rows of metrics.jsonl."""
    assert runs.train(configured(name, output_dir, *more)) == 0
    return read_rows(output_dir)


def values(rows, name):
    return [row[name] for row in rows if name in row]


def batch_of(task, config, count, split="eval"):
    source = sources.open_source(task, Inputs.open(config).data[0], split, 1)
    return source, next(iter(pipeline.eval_batches(source, config.data, count, 0, count)))


@pytest.fixture
def alone(at):
    """The run of the guide's class on one rank."""
    output_dir = at / "alone"
    if not output_dir.exists():
        train("choices:Choices", output_dir, "--eval_every=2")
    return output_dir


def test_the_guides_task_learns_and_is_scored(alone, at, caplog):
    found = read_rows(alone)
    assert len(values(found, "choice_loss")) == 4
    assert values(found, "loss") == values(found, "choice_loss")
    assert values(found, "eval_accuracy") == pytest.approx(values(found, "eval_choice_accuracy"))
    assert json.loads((alone / "best.json").read_text())["metric"] == "accuracy"
    predictions = [json.loads(line)["prediction"] for line in (alone / "predictions.jsonl").read_text().splitlines()]
    answers = [json.loads(line)["answer"] for line in (at / "eval.jsonl").read_text().splitlines()]
    right = np.mean(np.argmax(predictions, axis=1) == answers)
    assert right == pytest.approx(max(values(found, "eval_accuracy")))
    with caplog.at_level("INFO"):
        runs.evaluate(configured("choices:Choices", alone, "--mode=evaluate", "--resume=best"))
    assert f"accuracy                {right:.4f}" in caplog.text
    assert f"choice loss             {values(found, 'eval_choice_loss')[0]:.4f}" in caplog.text


def test_losses_are_those_of_the_formula(at):
    config = configured("choices:Choices", at / "unused")
    task = make_task(config, Mesh())
    _, batch = batch_of(task, config, 16)
    sums = {name: value.numpy() for name, value in task.compute(batch).items()}
    texts = {name: tf.reshape(batch[name], [-1, LENGTH]) for name in ("input_ids", "input_mask", "segment_ids")}
    hidden, _ = task.model.encode(texts)
    kernel, bias = (each.numpy().astype(np.float64) for each in task.model.classifier.weights)
    scores = (hidden.numpy()[:, 0].astype(np.float64) @ kernel + bias).reshape(16, 4)
    rows, answers = np.arange(12), batch["answers"].numpy()[:12]
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(16), batch["answers"].numpy()]
    assert sums["choice_loss"] == pytest.approx(losses[rows].sum(), rel=1e-5)
    assert sums["choice_accuracy"] == np.sum(scores[rows].argmax(1) == answers)
    assert sums["examples"] == sums["choice_loss/count"] == 12
    np.testing.assert_allclose(sums["outputs"], scores, rtol=1e-4, atol=1e-5)


@pytest.mark.multirank
@pytest.mark.parametrize(
    "layout",  # Micro-batches of a class are compared below, sharded weights in tests/train/test_layouts.py.
    [
        "--pipeline_parallel_size=2 --micro_batch_size=2 --pipeline_schedule=zero_bubble",
        pytest.param("--tensor_parallel_size=2 --sequence_parallel --jit_compile=true", marks=pytest.mark.nightly),
    ],
)
def test_two_ranks_learn_as_one_does(alone, at, tmp_path, layout):
    program = f"import os, sys; os.chdir({str(at)!r}); sys.path.insert(0, '.'); from tftrain import run; "
    program += "sys.exit(run.main(sys.argv))"
    flags = [*SMALL, "--task=choices:Choices", "--eval_every=2", f"--output_dir={tmp_path}", *layout.split()]
    run_ranks(2, ["-c", program, *flags])
    for name in ("loss", "choice_accuracy", "eval_choice_loss", "eval_mean_reciprocal_rank"):
        found, expected = (values(read_rows(folder), name) for folder in (tmp_path, alone))
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


@pytest.fixture
def whole(at):
    """The rows of a run of own.py's class on one rank."""
    output_dir = at / "whole"
    return read_rows(output_dir) if output_dir.exists() else train("own:Lengths", output_dir, ONE_LAYER)


def test_a_mean_over_tokens_is_that_of_the_whole_batch(whole, tmp_path):
    parts = train("own:Lengths", tmp_path, ONE_LAYER, "--grad_accum_steps=4")
    assert values(whole, "place_loss")[0] != values(whole, "small_loss")[0]
    for name in ("loss", "place_loss", "small_loss", "grad_norm"):
        np.testing.assert_allclose(values(parts, name), values(whole, name), rtol=2e-6)


def test_a_short_format_learns_nearly_the_same(whole, tmp_path):
    short = train("own:Lengths", tmp_path, ONE_LAYER, "--precision=fp16")
    np.testing.assert_allclose(values(short, "loss"), values(whole, "loss"), rtol=0.02)


def test_packed_texts_do_not_see_each_other(at, tmp_path):
    sums = {}
    for name, length in (("Packed", 16), ("Unpacked", 8)):
        config = configured(f"own:{name}", tmp_path, f"--max_seq_length={length}")
        task = make_task(config, Mesh())
        _, batch = batch_of(task, config, 6 if name == "Packed" else 12)
        sums[name] = task.compute(batch)
    assert float(sums["Packed"]["examples"]) == 6
    for name in ("place_loss", "place_loss/count"):
        np.testing.assert_allclose(sums["Packed"][name], sums["Unpacked"][name], rtol=1e-5)


def test_a_decoder_gives_the_loss_of_each_token(at, tmp_path):
    gpt = (f"--init_checkpoint=hf:{DATA / 'hf_gpt2'}", "--tokenizer_dir=", "--hidden_dropout_prob=0")
    flags = [flag for flag in SMALL if not flag.startswith(("--num_", "--hidden", "--tokenizer"))]
    flags += ["--task=own:Margin", f"--output_dir={tmp_path}", *gpt[:1], *gpt[2:], "--attention_probs_dropout_prob=0"]
    config = run.checked(*run.read(["tftrain.run", *flags]), Launch())[0]
    task = make_task(config, Mesh())
    _, batch = batch_of(task, config, 12)
    ids = batch["input_ids"].numpy().reshape(24, LENGTH)
    logits = task.model.logits(task.model.hidden_states({"input_ids": tf.constant(ids)})).numpy().astype(np.float64)
    labels = batch["labels"].numpy().reshape(24, LENGTH)
    entropy = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0]
    totals = (entropy * (labels >= 0)).sum(1).reshape(12, 2)
    expected = np.log1p(np.exp(totals[:, 0] - totals[:, 1])).sum()
    assert float(task.compute(batch)["margin_loss"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken:Task", "importing broken raised ZeroDivisionError: division by zero"),
        ("no_tuple:Task", "importing no_tuple raised TypeError: Task.minimizes is 'loss'; expected a tuple of names"),
        ("own:rows_of", "own has no class rows_of derived from"),
        ("own:Incomplete", "the class has no read and no terms"),
        ("own:Aimless", "the class has no minimizes"),
    ],
)
def test_a_class_that_is_none_is_refused(at, name, words):
    with pytest.raises(UserCodeError, match=f"^--task={name}: {re.escape(words)}"):
        configured(name, at / "unused")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raises", r"read\('/.*/train.jsonl'\) raised KeyError: 'nothing' \(own.py, line \d+\)"),
        ("NoArrays", r"read\('/.*'\) returned <class 'list'>; expected a dict with input_ids, input_mask, segment_ids"),
        ("Short", r"read\('/.*'\) returned input_ids of shape \(48, 11\); expected \(n, 12\) or \(n, K, 12\)"),
        ("Unknown", r"read\('/.*'\) returned input_ids from 90 to \d+; expected 0 to 94"),
        ("Uneven", r"read\('/.*'\) returned numbers, float64 \(3,\); expected numbers of \(48,\)"),
        ("Other", r"read\('/.*/eval.jsonl'\) returned rows of .* expected those of the training file"),
        ("Divides", r"terms raised ZeroDivisionError: .* \(own.py, line \d+\)"),
        ("Nothing", "terms returned no mean_loss, which the class minimizes or reports"),
        ("Wide", r"terms returned mean_loss of shape \(8, 32\); expected a number an example, \(8,\)"),
        ("Misspelt", "counts returned mean_lost, which the class neither minimizes nor reports"),
        ("Scored", "score returned no two, which is in scored"),
        ("Flat", r"predict returned shape \(96,\); expected 8 rows"),
    ],
)
def test_a_method_that_fails_or_returns_something_else_is_named(at, tmp_path, name, words):
    config = configured(f"own:{name}", tmp_path, ONE_LAYER)
    task = make_task(config, Mesh())

    def scores():
        batch_of(task, config, 8, "train")
        source, batch = batch_of(task, config, 8)
        outputs = task.compute(batch)["outputs"].numpy()
        return sources.scorer_of(task, source).scores(outputs)

    with pytest.raises(UserCodeError, match=f"^--task=own:{name}: {words}"):
        scores()


@pytest.mark.parametrize(
    ("name", "flag", "words"),
    [
        ("choices:Choices", "--best_metric=f1", "expected one of accuracy, mean_reciprocal_rank"),
        ("choices:Choices", "--labels=a", "expected score, the head of choices:Choices; another class"),
        ("own:Bare", "--early_stopping=2", "expected 0: scored has no names"),
        ("own:Bare", "--text_column=a", "remove this flag, or use --task=classification"),
        ("own:Lengths", "--model_family=gpt", "its head has names; expected (): a decoder has no such layer"),
    ],
)
def test_flags_that_contradict_the_class_are_refused(at, tmp_path, name, flag, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        configured(name, tmp_path, flag)


def test_another_class_does_not_continue_a_run(alone, at):
    with pytest.raises(
        ConfigError, match=r"^--labels=score: expected place, other, the head of .*; this value is that"
    ):
        train("own:Lengths", alone)
    with pytest.raises(CheckpointError, match="--task=own:Same, saved with choices:Choices"):
        train("own:Same", alone)


def test_the_file_of_a_class_belongs_to_what_a_resume_compares(at):
    (at / "edited.py").write_text("from own import Bare")
    config = configured("edited:Bare", at / "unused")
    before = Inputs.open(config).identity
    (at / "edited.py").write_text("from own import Bare  # edited")
    after = Inputs.open(config).identity
    assert [name for name in after if after[name] != before[name]] == ["the file of --task"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Divides", r"^--task=own:Divides: terms raised ZeroDivisionError: .* \(own.py, line \d+\)"),
        ("Infinite", "in step 2 the loss of --task=own:Infinite on rank 0 was not"),
        ("Taken", "^--task=own:Taken: a mean is named grad_norm, as another field"),
        ("TakenByRollbacks", "^--task=own:TakenByRollbacks: a mean is named rollbacks, as another field"),
    ],
)
def test_a_class_that_fails_in_a_run_is_named(at, tmp_path, name, words):
    with pytest.raises(RuntimeError, match=words):
        train(f"own:{name}", tmp_path, "--max_nan_steps=2", ONE_LAYER)


@pytest.mark.slow
def test_the_programs_take_the_model_or_say_why_not(alone, at, tmp_path):
    source, task = f"--from=tftrain:{alone}", "--task=choices:Choices"
    assert programs.outcome("convert", f"{source} --to=tftrain:{tmp_path / 'again'}", 0, {})[0] == 0
    code, lines = programs.outcome("convert", f"{source} --to=hf:{tmp_path / 'hf'}", 1, {})
    assert (code, len(lines)) == (1, 1)
    assert "is fine-tuned for choices:Choices, for which hf has no models; expected --to with tftrain" in lines[0]
    code, lines = programs.outcome("predict", f"--output_dir={alone} text", 1, {})
    assert (code, len(lines)) == (1, 1)
    assert f"{task}: its class reads files of its own; evaluate with tftrain.run --mode=evaluate, or add" in lines[0]
    again = f"--init_checkpoint=tftrain:{tmp_path / 'again'}"
    assert programs.outcome("export", f"{again} --to={tmp_path / 'out'}", 0, {})[0] == 0
    ids = {name: tf.ones([2, 5], tf.int32) for name in ("input_ids", "input_mask", "token_type_ids")}
    loaded = tf.saved_model.load(str(tmp_path / "out/1"))
    assert loaded.signatures["numbers"](**ids)["numbers"].shape == (2, 5, 1)
    assert (tmp_path / "out/labels.txt").read_text() == "score\n"
    plan = f"{task} --train_file=train.jsonl --num_hidden_layers=2 --hidden_size=32 --num_attention_heads=2"
    assert programs.outcome("plan", f"{plan} --micro_batch_size=2 --global_batch_size=16", 0, {})[0] == 0


def test_a_run_goes_on_with_the_head_of_another_one(alone, at, tmp_path):
    first = train("choices:Choices", tmp_path, f"--init_checkpoint=tftrain:{alone}", "--max_steps=1")
    assert values(first, "loss")[0] < values(read_rows(alone), "loss")[0]
    other = train("own:Lengths", tmp_path / "other", f"--init_checkpoint=tftrain:{alone}", "--max_steps=1")
    assert len(values(other, "place_loss")) == 1


@pytest.mark.parametrize(("family", "rows"), [("bert", None), ("roberta", [[-1, -1, 0, 1], [0, 1, 2, -1]])])
def test_positions_of_a_users_arrays_do_not_count_padding_if_the_family_does_not(family, rows):
    given = {"input_ids": np.ones([2, 4], np.int32), "input_mask": np.array([[0, 0, 1, 1], [1, 1, 1, 0]])}
    given |= {"segment_ids": np.zeros([2, 4], np.int32)}
    found = splits.of_arrays(given, ModelConfig(family, vocab_size=9), 4).examples.get("position_ids")
    assert (found if found is None else found.tolist()) == rows
