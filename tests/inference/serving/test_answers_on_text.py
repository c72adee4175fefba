"""Answers of an exported model are those of tftrain.predict, with their places in the context."""

import dataclasses
import random

import numpy as np
import pytest
import tensorflow as tf

from tests.finetune import files
from tests.formats.models import DATA
from tests.test_export import exported
from tests.test_predict import Drawn, objects, sentencepiece
from tests.tokenizer.libraries import LIBRARIES
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.finetune.encoding import ExampleEncoder, Sequences
from tftrain.finetune.squad import Question, divide, word_spans
from tftrain.inference import trained_model
from tftrain.inference.serving import answer_graph, signatures, word_span_graph
from tftrain.inference.serving.signatures import ServedModel
from tftrain.inference.serving.text_graph import TextGraph
from tftrain.inference.task_predictions import TaskPredictions
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer
from tftrain.tokenizer.vocabulary import Vocabulary

__all__ = ["sentencepiece"]

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
LONG, TH = " ".join(files.WORDS * 4), "\u0e01\u0e02"
# Questions and contexts; no context is in the vocabulary as a whole.
PAIRS = (
    "which type|The tensor-file has a good name, and costs $5. Its path is a list of keys 'x'.",
    f"key?|{LONG}",
    "|value",
    "which shape|",
    "which shape| \u00a0\t\n\u3000",
    f"{TH * 60}|key {TH * 80} map",
    "name|\u200b\x07\ufeff\x00",
    f"{'name, type and shape of all keys ' * 4}|{LONG}. {LONG}",
    "Caf\u00e9 cafe\u0301?|Le caf\u00e9, cafe\u0301 na\u00efve \u00c5ngstro\u0308m \u1e69 s\u0323\u0307 \u01d5ber.",
    "\u6771\u4eac|\u6771\u4eac\u306fgood\u3067\u3059\u3002\uff21\uff22\uff11\uf900\u3400 \u4e00path\u4e8c",
    "\ud55c|\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab key \u0939\u093f\u0928\u094d\u0926\u0940 \u0e01\u0e33\u0e49\u0e01",
    "\U0001f600|a\U0001f600b \U0001f468\u200d\U0001f469\u200d\U0001f467 good\u00a0bad\u2009\u2028path\u202f\u1680key",
    "a|co\u00adop\x07name \u202eerror\u202c \x85\x1c x\ufffdy \ue000 _under_score_ 3\u00bd \u00b2 \u2167 \U0001d7d8",
    "\u0130I|\u0130stanbul \u00df \u03a3\u03c2 \ufb01le \u1f80 \u212b \U00010400\U0001d15e \u0344 \U00020000\U0002f800",
    f"b|{'x' * 120} key {TH[0] * 130}",
)
EXAMPLES = [tuple(each.split("|")) for each in PAIRS]


def pieces(lower_case=True):
    """A tokenizer with letters of many scripts, so that most texts of this file have few unknown words."""
    given = files.tokenizer().vocabulary.tokens
    text = "".join(context for _, context in EXAMPLES)
    letters = sorted({each for each in text + "ABCxe\u0301\u1112\u1161\u11ab\u4e8c" if each.isalnum()} - set(given))
    return Tokenizer(Vocabulary((*given, *letters, *(f"##{x}" for x in letters)), "wordpiece"), lower_case, "bert")


def drawn(tokenizer, length=24, **settings):
    """A model for answers whose weights are drawn, far from 0, so that the scores of answers differ."""
    weights = Drawn(tokenizer)
    changes = {"task": "question_answering", "initializer_range": 0.7, "max_position_embeddings": length}
    weights.model = dataclasses.replace(weights.model, **changes)
    settings = {"doc_stride": 7, "max_query_length": 9, "max_answer_length": 4, **settings}
    weights.fine_tuning = FineTuningConfig(**settings)
    return trained_model.with_weights(weights)


def traced(model, threshold=None):
    """The signature as a graph."""
    source = ServedModel(model, TextGraph(model), 5, threshold)
    return signatures.signatures(source)["answer_text"].traced


def answer(function, examples):
    """Returns what the signature gives for questions and contexts."""
    question, context = (tf.constant(each) for each in zip(*examples, strict=True))
    return {name: value.numpy() for name, value in function(question=question, context=context).items()}


@pytest.fixture(scope="module")
def common():
    """A model, and the signature of it as a graph, which reads the windows of a context part by part."""
    model = drawn(pieces())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_graph, "WINDOWS_AT_ONCE", 64)
        return model, traced(model)


def assert_equal(found, model, examples, threshold=None):
    """Compares the outputs of the signature with what tftrain.predict prints."""
    _, predicted = TaskPredictions(model, model.max_seq_length, threshold, 5, 3)(examples)
    best = [each["n_best"][0] for each in predicted]
    text = [each.decode() if isinstance(each, bytes) else each for each in found["answer"]]
    assert text == [each["prediction"] for each in predicted]
    assert list(found["start"]) == [each["start"] for each in best]
    assert list(found["end"]) == [each["end"] for each in best]
    # Scores have 4 digits after the point, and rounding errors of fp32 sums.
    np.testing.assert_allclose(found["score"], [each["score"] for each in best], rtol=1e-5, atol=1e-4)
    for start, end, each, (_, context) in zip(found["start"], found["end"], text, examples, strict=True):
        assert context[start:end] == each


def random_examples(count):
    """Questions and contexts of words of the vocabulary, of any characters, and of both."""
    draw = random.Random(5)
    characters = [chr(code) for code in (*range(1, 0x250), *range(0x300, 0x370), *range(0x900, 0x980), 0x4E00, 0x1F600)]
    words = [*files.WORDS * 3, *characters, "\u00a0", "\u200b", ".", "e\u0301"]

    def text(most):
        return "".join(each + draw.choice(("", " ")) for each in draw.choices(words, k=draw.randint(0, most)))

    return [(text(12), text(60)) for _ in range(count)]


def test_answers_are_those_of_predict(common):
    model, function = common
    examples = [*EXAMPLES, *random_examples(40)]
    found = answer(function, examples)
    assert_equal(found, model, examples)
    without = [context for (_, context), end in zip(EXAMPLES, found["end"], strict=False) if end == 0]
    assert without == [each for _, each in EXAMPLES if not each.strip(" \u00a0\t\n\u3000\u200b\x07\ufeff\x00")]
    assert max(found["start"]) > 100, "an answer is in a later window"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"doc_stride": 1, "n_best": 5, "max_answer_length": 1}, marks=pytest.mark.nightly),
        {"doc_stride": 99, "max_query_length": 99, "max_answer_length": 30},
    ],
    ids=["short", "long"],
)
def test_the_settings_of_the_run_and_the_threshold_count(settings):
    model, examples = drawn(pieces(), **settings), [*EXAMPLES, *random_examples(15)]
    scores = answer(traced(model), examples)
    margin = np.median((scores["null_score"] - scores["score"])[scores["end"] > 0])
    threshold = float(margin) + 1e-3
    found = answer(traced(model, threshold), examples)
    assert_equal(found, model, examples, threshold)
    np.testing.assert_array_equal(found["null_score"], scores["null_score"])
    assert 10 < np.count_nonzero(found["end"]) < np.count_nonzero(scores["end"]) - 10


@pytest.mark.nightly
def test_of_equal_scores_the_first_counts_in_both():
    model = drawn(pieces(), doc_stride=3)
    whole = model.network.task_outputs
    model.network.task_outputs = lambda batch: tf.round(whole(batch) / 2)
    draw = random.Random(2)
    examples = [("key", " ".join(draw.choices(("key", "map", "list"), k=30))) for _ in range(40)]
    assert_equal(answer(traced(model), examples), model, examples)


@pytest.mark.parametrize("tokenizer_type", ["wordpiece", pytest.param("sentencepiece", marks=pytest.mark.nightly)])
def test_words_have_the_places_of_training_for_every_code_point(tokenizer_type):
    # Ideographs, private use and what is unassigned are nearly all: some of them.
    codes = [code for code in CODES if code < 0x3400 or 0xA000 <= code < 0x12000 or code % 17 == 0]
    samples = [f"{chr(code) * 2}a{chr(code)}a " for code in codes]
    texts = ["", *("".join(samples[begin : begin + 9]) for begin in range(0, len(samples), 9))]
    found = word_span_graph.words_of(tf.strings.unicode_decode(texts, "UTF-8"), tokenizer_type)
    expected = [(number, *span) for number, text in enumerate(texts) for span in word_spans(text, tokenizer_type)]
    assert list(zip(*(each.numpy().tolist() for each in found[1:]), strict=True)) == expected
    strings = [each.decode() for each in found.strings.numpy()]
    assert strings == [texts[text][begin:end] for text, begin, end in expected]


@pytest.mark.parametrize("of_roberta", [False, True])
@pytest.mark.parametrize(("length", "stride"), [(9, 1), (16, 5), (23, 4), (40, 99)])
def test_windows_are_those_of_training(length, stride, of_roberta):
    draw = random.Random(length)
    sizes = [(3, 0), (0, 300), (4, length - 7), (4, length - 6)]
    sizes += [(draw.randint(0, 4), draw.randint(0, 90)) for _ in range(30)]
    drawn = [[" ".join(draw.choices(files.WORDS, k=size)) for size in pair] for pair in sizes]
    questions = [Question("", "", *texts, (), ()) for texts in drawn]
    tokenizer = files.tokenizer()
    if of_roberta:  # two separators between texts, one token type, and another padding than 0
        roles = tokenizer.vocabulary.roles._replace(padding=7, separators=2, second_type=0)
        tokenizer = tokenizer._replace(vocabulary=dataclasses.replace(tokenizer.vocabulary, roles=roles))
    encoder = ExampleEncoder(tokenizer, length)
    windows, encoded = divide(questions, encoder, "wordpiece", stride, 4)
    tokens = [encoder.tokenize(list(texts)) for texts in zip(*drawn, strict=True)]
    asked, context = (tf.ragged.constant(each, tf.int32, ragged_rank=1) for each in tokens)
    vocabulary = tokenizer.vocabulary
    found = answer_graph.divide(asked, context, vocabulary.roles, length, stride, vocabulary.padding_id)
    rows = Sequences(encoded, vocabulary.padding_id).rows(
        np.arange(len(encoded)), max(len(each.ids) for each in encoded)
    )
    for name, expected in zip(("input_ids", "input_mask", "segment_ids"), rows, strict=True):
        np.testing.assert_array_equal(found.batch[name], expected)
    assert found.question.numpy().tolist() == [window.question for window in windows]
    for row, window in enumerate(windows):
        part = slice(window.first, window.first + len(window.words))
        assert np.flatnonzero(found.is_part[row]).tolist() == list(range(part.start, part.stop))
        np.testing.assert_array_equal(found.is_best[row, part], window.is_best)
    assert not np.any(found.is_best & ~found.is_part)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sentencepiece", "nfkc", "cased", "xlm_roberta", "roberta"])
def test_other_tokenizers_give_the_answers_of_predict(sentencepiece, tmp_path, kind):
    others = {"sentencepiece": sentencepiece, "nfkc": pieces()._replace(normalization="nfkc"), "cased": pieces(False)}
    if kind in LIBRARIES:
        (tmp_path / "tokenizer.json").write_bytes(LIBRARIES[kind]())
        others[kind] = tokenizer_files.read(tmp_path)
    model, examples = drawn(others[kind]), [*EXAMPLES, *random_examples(40)]
    found = answer(traced(model), examples)
    assert_equal(found, model, examples)


@pytest.mark.nightly
def test_an_export_has_the_threshold_of_its_flag(capsys, tmp_path):
    place = f"--init_checkpoint=hf:{DATA}/hf_bert_answers"
    text = exported(capsys, tmp_path / "out", place, "--null_score_threshold=-1000")
    assert "answer_text" in text
    function = tf.saved_model.load(str(tmp_path / "out/1")).signatures["answer_text"]
    examples = [("a", "b c d e"), ("b", "a bed sings " * 20)]
    found = answer(function, examples)
    assert found["answer"].tolist() == [b"", b""]
    np.testing.assert_array_equal(found["score"], found["null_score"])
    expected = objects(capsys, place, "--null_score_threshold=-1000", *("\t".join(each) for each in examples))
    scores = [each["n_best"][0]["score"] for each in expected]
    np.testing.assert_allclose(found["score"], scores, rtol=1e-5, atol=1e-4)


def test_as_many_contexts_as_questions_are_expected(common):
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected as many of one as of the other"):
        common[1](question=tf.constant(["a", "b"]), context=tf.constant(["a"]))


def test_a_byte_that_is_no_utf_8_is_one_character(common):
    found = answer(common[1], [(b"k\xffey", b"\xe9\xff\xff key\xc3")])
    text = "\ufffd\ufffd\ufffd key\ufffd"
    assert found["answer"][0].decode() == text[found["start"][0] : found["end"][0]] == "key"
