"""tftrain.predict gives for a text what training's predictions.jsonl has for it."""

import dataclasses
import json

import numpy as np
import pytest

from tests.finetune import files
from tests.formats.models import DATA
from tests.kit import runs
from tests.tasks.test_fine_tuning import OUTPUT_SHAPES, configured, data
from tests.test_predict import load, objects, run
from tftrain.config.convert import Place
from tftrain.data import pipeline
from tftrain.formats import registry
from tftrain.formats.weights import DerivedWeights, Weights
from tftrain.inference import trained_model
from tftrain.inference.task_predictions import TaskPredictions
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.mesh import Mesh
from tftrain.tasks import make_task, sources

__all__ = ["data"]


class TrainedWeights(Weights):
    """The weights of a task in memory, as a checkpoint of its run would give them."""

    path = "memory"

    def __init__(self, config, task):
        self.model, self.tokenizer = config.model, files.tokenizer()
        self.fine_tuning, self.max_seq_length = config.fine_tuning, config.data.max_seq_length
        self._values = {name: variable.numpy() for name, variable in task.model.named_variables().items()}
        self.shapes = {name: value.shape for name, value in self._values.items()}

    def read(self, name):
        return self._values[name]


def assert_equal(found, expected):
    """Compares objects; numbers in fp32 with rounding to 4 digits or more."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for name in expected:
            assert_equal(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_equal(*pair)
    else:
        assert found == (pytest.approx(expected, rel=1e-4, abs=2e-4) if isinstance(expected, float) else expected)


def texts_of(expected, contexts):
    """Returns the text, or both texts, of an object of predictions.jsonl, given the contexts of questions by id."""
    if "words" in expected:
        return (" ".join(expected["words"]),)
    return tuple(expected["texts"]) if "texts" in expected else (expected["question"], contexts[expected["id"]])


VECTORS = ("--pooling=max", "--embedding_dense=6", "--text_prompt=key list: ")
VECTORS += ("--text_pair_prompt=b", "--pool_prompt=false")
DECODER = ("--model_family=gpt", "--embedding_dense=5", "--normalize_embeddings=false", "--text_prompt=a ")


@pytest.mark.parametrize(
    ("name", "more"), [*((name, ()) for name in OUTPUT_SHAPES), ("embedding", VECTORS), ("embedding", DECODER)], ids=str
)
def test_predictions_are_those_of_training(data, name, more, tmp_path):
    config = configured(data[name], *more, f"--output_dir={tmp_path}")
    task = make_task(config, Mesh())
    source = sources.open_source(task, Inputs.open(config).data[0], "eval", 1)
    count = len(source.examples)
    batch = next(iter(pipeline.eval_batches(source, config.data, count, 0, count)))
    expected = list(sources.scorer_of(task, source).predictions(task.compute(batch)["outputs"].numpy()))
    model = trained_model.with_weights(TrainedWeights(config, task))
    run = TaskPredictions(model, model.max_seq_length, None, 5, batch_size=7)
    contexts = {each[0].id: each[0].context for each in source.examples} if name == "question_answering" else {}
    readings, found = run([texts_of(each, contexts) for each in expected])
    assert len(readings) == len(expected) == 19
    for ours, theirs in zip(found, expected, strict=True):
        assert_equal(ours, {key: theirs[key] for key in theirs if key not in ("id", "label")})


def test_a_run_with_pairs_predicts_pairs_and_refuses_single_texts(capsys, tmp_path):
    vocabulary = files.write_vocabulary(tmp_path / "vocabulary")
    draw = np.random.default_rng(3)
    words = [[str(draw.choice(files.WORDS)), " ".join(draw.choice(files.WORDS, 14))] for _ in range(12)]
    rows = [{"text": one, "text_pair": two, "label": number % 3} for number, (one, two) in enumerate(words)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = (
        *("--task=classification", "--text_pair_column=text_pair", f"--train_file={tmp_path}/pairs.jsonl"),
        *(f"--eval_file={tmp_path}/pairs.jsonl", f"--tokenizer_dir={vocabulary}", "--max_seq_length=12"),
        *("--num_hidden_layers=1", "--hidden_size=16", "--num_attention_heads=2", "--initializer_range=0.3"),
        *("--global_batch_size=4", "--max_steps=2", "--eval_every=2", f"--output_dir={tmp_path / 'run'}"),
    )
    assert runs.train(configured(flags)) == 0
    capsys.readouterr()
    expected = [json.loads(line) for line in (tmp_path / "run/predictions.jsonl").read_text().splitlines()]
    lines = "".join("\t".join(each["texts"]) + "\n" for each in expected)
    (tmp_path / "lines").write_text(lines)
    place = f"--output_dir={tmp_path / 'run'}"
    found = objects(capsys, place, f"--input_file={tmp_path / 'lines'}")
    assert_equal(found, [{key: each[key] for key in each if key != "label"} for each in expected])
    # 14 words do not fit the 12 tokens of the run, as in training.
    code, _, err = run(capsys, place, lines.splitlines()[0])
    assert (code, err) == (0, "predict: text 1: 6 tokens are left out: the model reads at most 12\n")
    (tmp_path / "lines").write_text(f"{lines}alone\n")
    code, _, err = run(capsys, place, f"--input_file={tmp_path / 'lines'}")
    where = f"predict: --input_file={tmp_path / 'lines'}: line 13"
    assert (code, err) == (1, f"{where}: no tab; expected a text, a tab and a second text: the run had pairs\n")


@pytest.mark.parametrize(
    ("name", "given", "lines"),
    [
        ("classes", ["a b", "c\td"], ["a b", "  class: ", "c\\td", "  class: "]),
        ("tokens", ["a  bed", " "], ["a  bed", "  words: a ", " ", "  words: "]),
        ("answers", ["a\tb c"], ["a\\tb c", '  answer: "']),
    ],
)
def test_lines_to_read_have_the_text_and_its_prediction(capsys, name, given, lines):
    code, out, err = run(capsys, f"--init_checkpoint=hf:{DATA}/hf_bert_{name}", "--top_k=2", *given)
    assert (code, err) == (0, "")
    shown = out.splitlines()
    assert [line[: len(start)] for line, start in zip(shown, lines, strict=True)] == lines


def test_a_question_may_have_no_answer(capsys):
    place, text = f"--init_checkpoint=hf:{DATA / 'hf_bert_answers'}", "a\tb c d e"
    (some,) = objects(capsys, place, text)
    (none,) = objects(capsys, place, "--null_score_threshold=-1000", text)
    assert some["prediction"] == some["n_best"][0]["text"] != ""
    assert none["prediction"] == none["n_best"][0]["text"] == ""
    assert none["n_best"][1:] == some["n_best"][:19]


def test_the_flags_of_the_run_count_unless_others_are_given(data, tmp_path):
    config = configured(data["question_answering"], "--n_best=3", f"--output_dir={tmp_path}")
    weights = TrainedWeights(config, make_task(config, Mesh()))
    model = trained_model.with_weights(weights)
    assert model.max_seq_length == 16
    assert TaskPredictions(model, 16, None, 2, 1).reader._settings == config.fine_tuning
    changed = TaskPredictions(model, 16, 1.5, 5, 1).reader._settings
    assert changed == dataclasses.replace(config.fine_tuning, n_best=5, null_score_threshold=1.5)
    registry.write_weights(Place("tftrain", str(tmp_path)), DerivedWeights(weights, weights.shapes))
    copied = load(f"tftrain:{tmp_path}")
    assert (copied.fine_tuning, copied.max_seq_length) == (config.fine_tuning, 16), "a conversion keeps them"
