"""Exported models give the outputs of the trained ones in a process that has nothing of tftrain."""

import contextlib
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.formats.models import DATA
from tests.inference.serving.test_task_signatures import predicted
from tests.test_export import token_features
from tests.test_predict import load
from tftrain import export
from tftrain.inference import candidates, trained_model
from tftrain.inference.serving import saved_model
from tftrain.inference.serving.signatures import ServedModel, signatures
from tftrain.inference.serving.text_graph import TextGraph

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
TEXTS = ["a b [MASK] ed [MASK]", "", "Q\u00e9 [MASK]s"]
FIRST, SECOND = ["a bed", "c"], ["d", "e f"]
QUESTIONS, CONTEXTS = ["a", "b"], ["b c d e", "a bed sings " * 20]
MODELS = ["hf_bert", "hf_bert_classes", "hf_bert_tokens", "hf_bert_answers"]
# The signatures on token ids, and those on texts with what they are given. The first one is given a part, too.
ON_IDS = {
    "hf_bert": ("encode", "masked_lm", "serving_default"),
    "hf_bert_classes": ("classify",),
    "hf_bert_tokens": ("classify_tokens",),
    "hf_bert_answers": ("answer",),
}
ON_TEXT = {
    "hf_bert": {"embeddings": {"text": TEXTS}, "masked_tokens": {"text": TEXTS}},
    "hf_bert_classes": {"classify_text": {"text": FIRST}, "classify_pair": {"text": FIRST, "text_pair": SECOND}},
    "hf_bert_answers": {"answer_text": {"question": QUESTIONS, "context": CONTEXTS}},
}

# What a server does, also without a row or a token. The packages that it must not need can't be imported.
BARE = """
import json, sys
sys.modules.update(dict.fromkeys(["tftrain", "tensorflow_text", "tf_keras"]))
import numpy as np, tensorflow as tf
outputs = {}
for name, on_ids, on_text in json.loads(sys.argv[1]):
    functions, features = tf.saved_model.load(f"{name}/1").signatures, dict(np.load(f"{name}.npz"))
    calls = [(signature, signature, features) for signature in on_ids]
    calls.append((f"part_{on_ids[0]}", on_ids[0], {key: value[1:2, :11] for key, value in features.items()}))
    calls += [(signature, signature, texts) for signature, texts in on_text.items()]
    for place, signature, given in calls:
        found = functions[signature](**{key: tf.constant(value) for key, value in given.items()})
        for key, value in found.items():
            value = value.numpy()
            outputs[f"{name}/{place}/{key}"] = value.astype("U") if value.dtype == object else value
    for signature in (*on_ids, *on_text):
        specs = functions[signature].structured_input_signature[1]
        for shape in [(0, 0), (0, 4), (2, 0)] if signature in on_ids else [(0,)]:
            given = {key: tf.zeros(shape, spec.dtype) for key, spec in specs.items()}
            for value in functions[signature](**given).values():
                assert value.shape[0] == shape[0], (signature, shape)
                assert shape == (0,) or value.shape.rank < 3 or value.shape[1] == shape[1], (signature, shape)
np.savez("found.npz", **outputs)
"""


def expected(name):
    return np.load(DATA / name / "expected.npz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all models as exported, one of them by the program, with what it said; and of what was found."""
    folder = tmp_path_factory.mktemp("exported")
    for name in MODELS:
        if name == "hf_bert_classes":
            with contextlib.redirect_stdout(io.StringIO()) as said:
                assert export.main(["export", f"--to={folder / name}", f"--init_checkpoint=hf:{DATA / name}"]) == 0
            (folder / "said").write_text(said.getvalue())
        else:
            model = load(f"hf:{DATA / name}")
            source = ServedModel(model, TextGraph(model), 3)
            needed = (*ON_IDS[name], *ON_TEXT.get(name, ()))
            made = {key: each for key, each in signatures(source).items() if key in needed}
            saved_model.write(folder / name / "1", source, made)
        np.savez(folder / f"{name}.npz", **token_features(expected(name)))
    calls = json.dumps([(name, ON_IDS[name], ON_TEXT.get(name, {})) for name in MODELS])
    subprocess.run([sys.executable, "-I", "-c", BARE, calls], check=True, timeout=200, cwd=folder)
    return folder


@pytest.fixture
def outputs(folder):
    return np.load(folder / "found.npz")


def test_the_program_compares_what_it_has_written_and_writes_the_tokenizer_and_the_classes(folder):
    said, folder = (folder / "said").read_text(), folder / "hf_bert_classes"
    assert "largest difference of logits" in said
    assert "predictions with the same best class: 100.00%" in said
    assert sorted(path.name for path in folder.iterdir()) == ["1", "labels.txt", "tokenizer"]
    assert (folder / "tokenizer/vocab.txt").read_bytes() == (DATA / "hf_bert_classes/vocab.txt").read_bytes()
    assert (folder / "labels.txt").read_text() == "bad\nfine\ngood\n"


def test_hidden_states_and_logits_are_those_of_transformers(outputs):
    wanted, hidden = expected("hf_bert"), outputs["hf_bert/encode/hidden_states"]
    real = wanted["input_mask"].astype(bool)
    np.testing.assert_allclose(hidden[real], wanted["hidden"][real], **CLOSE)
    np.testing.assert_array_equal(outputs["hf_bert/serving_default/hidden_states"], hidden)
    np.testing.assert_allclose(outputs["hf_bert/masked_lm/logits"][real], wanted["mlm_logits"][real], **CLOSE)
    np.testing.assert_allclose(outputs["hf_bert/part_encode/hidden_states"], wanted["hidden"][1:2, :11], **CLOSE)


def test_masked_tokens_and_vectors_of_texts_are_those_of_the_trained_model(outputs):
    model = load(f"hf:{DATA / 'hf_bert'}")
    samples = trained_model.TextEncoder(model)(TEXTS)
    masked = [each for sample in candidates.masked_tokens(model, top_k=3)(samples) for each in sample]
    places = [(number, place) for number, sample in enumerate(samples) for place in sample.masks]
    found = {name: outputs[f"hf_bert/masked_tokens/{name}"] for name in ("text_index", "position", "tokens")}
    assert list(zip(found["text_index"], found["position"], strict=True)) == places
    assert [[candidate.token for candidate in each] for each in masked] == found["tokens"].tolist()
    probabilities = [[candidate.probability for candidate in each] for each in masked]
    np.testing.assert_allclose(outputs["hf_bert/masked_tokens/probabilities"], probabilities, **CLOSE)
    for number, sample in enumerate(samples):
        ids = tf.constant(sample.ids[np.newaxis])
        hidden, pooled = model.network.encode(trained_model.encoder_batch(ids, tf.ones_like(ids)))
        for name, vector in (("cls", hidden[0, 0]), ("mean", tf.reduce_mean(hidden[0], axis=0)), ("pooled", pooled[0])):
            np.testing.assert_allclose(outputs[f"hf_bert/embeddings/{name}"][number], vector, **CLOSE)


@pytest.mark.parametrize(
    ("name", "signature", "ends"),
    [
        ("hf_bert_classes", "classify", ["logits"]),
        ("hf_bert_tokens", "classify_tokens", ["logits"]),
        ("hf_bert_answers", "answer", ["start_logits", "end_logits"]),
    ],
)
def test_logits_of_a_task_are_those_of_transformers(outputs, name, signature, ends):
    wanted = expected(name)
    logits, real = wanted["task_logits"], wanted["input_mask"].astype(bool)
    for index, output in enumerate(ends):
        values = logits[..., index] if len(ends) > 1 else logits
        rows, part = (slice(None), values[1:2]) if name == "hf_bert_classes" else (real, values[1:2, :11])
        np.testing.assert_allclose(outputs[f"{name}/{signature}/{output}"][rows], values[rows], **CLOSE)
        np.testing.assert_allclose(outputs[f"{name}/part_{signature}/{output}"], part, **CLOSE)


def test_classes_and_answers_of_texts_are_those_of_predict(outputs):
    assert outputs["hf_bert_classes/classify_text/classes"].tolist() == [["bad", "fine", "good"]] * 2
    model = load(f"hf:{DATA / 'hf_bert_classes'}")
    texts = {"classify_text": [(text,) for text in FIRST], "classify_pair": list(zip(FIRST, SECOND, strict=True))}
    for signature, given in texts.items():
        found = outputs[f"hf_bert_classes/{signature}/probabilities"]
        np.testing.assert_allclose(found, predicted(model, given, "probabilities"), **CLOSE)
    model, questions = load(f"hf:{DATA / 'hf_bert_answers'}"), list(zip(QUESTIONS, CONTEXTS, strict=True))
    found = outputs["hf_bert_answers/answer_text/answer"].tolist()
    assert found == predicted(model, questions, "prediction")
