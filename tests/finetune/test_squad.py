"""Windows over contexts, answers from logits, and scores equal to those of SQuAD's own script."""

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.finetune.files import squad, tokenizer, write_squad
from tests.kit.tf_models import tf_models
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.files.errors import DataError
from tftrain.finetune import squad_answers
from tftrain.finetune.encoding import ExampleEncoder
from tftrain.finetune.squad import Question, divide, read_questions, word_spans
from tftrain.finetune.squad_answers import AnswerScorer, score_answers
from tftrain.finetune.tables import FileNotes
from tftrain.tokenizer.normalization import bert_words

CONTEXT = "The tensor-file has a good name, and costs $5. Its path is a list of keys 'x'."


def questions_of(tmp_path, *questions):
    return read_questions(str(write_squad(tmp_path / "squad.json", questions)))


def windows_of(questions, length=64, stride=8, query=8):
    return divide(questions, ExampleEncoder(tokenizer(), length), "wordpiece", stride, query)


@pytest.mark.parametrize("answer", ["tensor-file", "tensor", "good name", "$5", "5", "'x'", "The", "list of keys"])
@pytest.mark.parametrize("length", [24, 32, 64])
def test_the_best_logits_give_the_answer_as_it_stands_in_the_context(tmp_path, answer, length):
    questions = questions_of(tmp_path, (CONTEXT, "q", "which type", [answer]))
    windows, encoded = windows_of(questions, length)
    assert all(len(each.ids) <= length for each in encoded)
    assert any(window.answer != (0, 0) for window in windows)
    logits = np.zeros([len(windows), length, 2], np.float32)
    for row, window in enumerate(windows):
        logits[row, window.answer[0], 0] = logits[row, window.answer[1], 1] = 9 if window.answer != (0, 0) else 0
    scorer = AnswerScorer([(questions[0], window) for window in windows], FineTuningConfig())
    (found,) = scorer.predictions(logits)
    assert found["prediction"] == answer
    assert scorer.scores(logits) == {"f1": 100.0, "exact_match": 100.0}


def test_every_token_of_a_context_is_best_in_one_window(tmp_path):
    windows, _ = windows_of(questions_of(tmp_path, (CONTEXT, "q", "which", ["5"])), length=16, stride=5)
    assert len(windows) > 3
    tokens = windows_of(questions_of(tmp_path, (CONTEXT, "q", "which", ["5"])), length=200)[0][0].words
    assert sum(int(window.is_best.sum()) for window in windows) == len(tokens)


def test_a_question_has_no_answer_if_that_scores_higher(tmp_path):
    questions = questions_of(tmp_path, (CONTEXT, "q", "which", []))
    (window,), _ = windows_of(questions)
    logits = np.zeros([1, 64, 2], np.float32)
    logits[0, window.first + 2] = 2
    logits[0, 0] = 3
    found = AnswerScorer([(questions[0], window)], FineTuningConfig(null_score_threshold=1.5))
    assert next(found.predictions(logits))["prediction"] == ""
    found = AnswerScorer([(questions[0], window)], FineTuningConfig(null_score_threshold=2.5))
    assert next(found.predictions(logits))["prediction"] != ""


MIXED = "aZ é e\u0301 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e17\u0e35\u0e48 \u4e2d\U00020000 5\u20ac"
MIXED += " $-_ \u200b\u3000\u00ad\n"


@given(st.text(st.sampled_from(MIXED)) | st.text(), st.booleans())
def test_words_of_a_context_are_those_of_the_tokenizer(text, lower_case):
    """Vowel signs and accents, which the tokenizer leaves in their word or drops, do not divide it."""
    words_of = bert_words(lower_case)
    words = [words_of(text[begin:end]) for begin, end in word_spans(text, "wordpiece")]
    assert list(itertools.chain(*words)) == words_of(text)


TEXTS = st.text("abthe .,'-", max_size=12)
ANSWERED = st.tuples(TEXTS, st.lists(TEXTS.filter(str.strip), min_size=1, max_size=3))
QUESTIONS = st.lists(st.tuples(TEXTS, st.lists(TEXTS.filter(str.strip), max_size=3)), max_size=8)


def scores_of(pairs):
    """Returns SQuAD's JSON, predictions, and our scores, given (prediction, correct answers)."""
    entries = [(" ".join(answers) + " x", f"q{number}", "?", answers) for number, (_, answers) in enumerate(pairs)]
    found = {f"q{number}": text for number, (text, _) in enumerate(pairs)}
    questions = [Question("", name, "?", context, tuple(answers), ()) for context, name, _, answers in entries]
    return squad(entries)["data"], found, score_answers(questions, found)


@given(ANSWERED, QUESTIONS)
def test_scores_are_those_of_the_official_script(first, others):
    """tf-models has SQuAD's script for version 2.0."""
    content, found, ours = scores_of([first, *others])
    theirs = tf_models("official.nlp.tools.squad_evaluate_v2_0").evaluate(content, found)
    names = {"exact_match": "exact", "f1": "f1"}
    if any(not answers for _, answers in others):
        names |= {"has_answer_f1": "HasAns_f1", "no_answer_exact_match": "NoAns_exact"}
    for name, other in names.items():
        assert ours[name] == pytest.approx(theirs[other], abs=1e-9)


def test_scores_of_version_1_are_those_of_the_official_script():
    draw = random.Random(3)
    texts = ["the red cat", "red cat", "A dog, running", "dog", "5 %", "Denver Broncos", "Broncos"]
    content, found, ours = scores_of([(draw.choice(texts), draw.sample(texts, 2)) for _ in range(50)])
    theirs = tf_models("official.nlp.tools.squad_evaluate_v1_1").evaluate(content, found)
    assert ours["f1"] == pytest.approx(100 * theirs["final_f1"])
    assert ours["exact_match"] == pytest.approx(100 * theirs["exact_match"])


def test_a_question_that_leaves_no_room_is_refused(tmp_path):
    questions = questions_of(tmp_path, (CONTEXT, "q", "which type of file name is good", ["5"]))
    with pytest.raises(DataError, match="leave no tokens for the context"):
        windows_of(questions, length=8, query=8)


ANSWER = {"text": "path", "answer_start": 2}
LISTS = {"text": ["path"], "answer_start": [2]}
ROW = {"context": "a path", "question": "q"}


def read_json(tmp_path, text, name="x.json", **more):
    path = tmp_path / name
    path.write_text(text)
    return [(each.id, each.answers, each.starts) for each in read_questions(str(path), **more)]


def nested(**entry):
    entry = {"id": "1", "question": "q", **entry}
    return {"data": [{"paragraphs": [{"context": "a path", "qas": [entry]}]}]}


FORMS = [
    nested(answers=[ANSWER]),
    nested(id=1, answers=LISTS),
    nested(answers=[ANSWER])["data"],
    nested(answers=[ANSWER])["data"][0],
    {"data": [{**ROW, "id": 1, "answers": LISTS}]},
    [{**ROW, "id": "1", "answers": LISTS}],
    {**ROW, "id": "1", "answers": ANSWER},
    nested(answers=[{"text": "path", "answer_start": "2"}], is_impossible="False"),
    nested(answers=[{"text": "path", "answer_start": 2.0}], is_impossible=None),
]
WITHOUT_ANSWER = [
    *(nested(answers=[ANSWER], is_impossible=value) for value in (True, 1, "True")),
    nested(is_impossible=True, plausible_answers=[ANSWER]),
    nested(answers={"text": [], "answer_start": []}),
    nested(answers=[{"text": "", "answer_start": -1}]),
    nested(answers=[]),
]


@pytest.mark.parametrize("content", [*FORMS, *WITHOUT_ANSWER])
def test_questions_are_nested_or_rows_and_may_have_no_answer(tmp_path, content):
    answer = ((), ()) if content in WITHOUT_ANSWER else (("path",), (2,))
    assert read_json(tmp_path, json.dumps(content)) == [("1", *answer)]


def damaged(**entry):
    return nested(**{"answers": [ANSWER], **entry})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no data"),
        ([{"id": "1", "question": "q", "answers": LISTS}], "no context"),
        (damaged()["data"] * 2, "for the second time"),
        (damaged(id=None), "no id"),
        (damaged(id=107.5), "question 1: id is 107.5; expected a text or a whole number"),
        (damaged(is_impossible="yes"), "question 1: is_impossible is 'yes'; expected true or false"),
        (damaged(answers=[{"text": "path", "answer_start": True}]), "answer_start is True; expected a whole number"),
        (damaged(answers=[{"text": "path", "answer_start": 3}]), "but at character 3 the context"),
        (damaged(answers={"text": ["a", "path"], "answer_start": [2]}), "2 texts of answers and 1 of answer_start"),
        (damaged(answers=None), "question 1: no answers"),
        (damaged(question=["q"]), r"question is \['q'\]; expected a text"),
    ],
)
def test_a_damaged_file_is_named_with_the_field_and_its_value(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_json(tmp_path, json.dumps(content))


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_rows_a_line_may_be_bad(tmp_path, name, caplog):
    caplog.set_level("INFO")
    rows = [
        {**ROW, "id": str(n), "answers": {"text": [text], "answer_start": [2]}} for n, text in enumerate(("path", "x"))
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"id"\n'
    with pytest.raises(DataError, match="question 1: the answer is 'x'"):
        read_json(tmp_path, text, name)
    notes = FileNotes()
    assert read_json(tmp_path, text, name, skips=True, notes=notes) == [("0", ("path",), (2,))]
    assert "2 damaged lines are left out, 1 are read" in notes[0][1]


@pytest.mark.parametrize(
    ("predicted", "correct", "f1_score", "exact"),
    [
        *(("北京大学", "北京大学的", 8 / 9, 0), ("《红楼梦》", "红楼梦", 1, 1), ("„Faust“", "Faust", 1, 1)),
        *(("المدرسة", "مدرسة", 1, 1), ("タワーは", "タワー", 6 / 7, 0), ("กรุง", "กรุงเทพ", 8 / 11, 0)),
        *(("서울 특별시", "서울", 2 / 3, 0), ("The U.S. dollar", "us dollar", 1, 1)),
    ],
)
def test_answers_in_other_languages_count_by_their_words_or_characters(predicted, correct, f1_score, exact):
    assert squad_answers.f1(predicted, correct) == pytest.approx(f1_score)
    assert squad_answers.exact_match(predicted, correct) == exact


@pytest.mark.parametrize(
    ("context", "answer", "words"),
    [("東京タワーは高い。", "タワー", "タワーは"), ("in the 1990s.", "1990", "1990s"), ("a path.", "path", "path")],
)
def test_the_words_that_an_answer_touches_are_what_a_model_can_give(context, answer, words):
    question = Question("x", "x", "q", context, (answer,), (context.index(answer),))
    assert squad_answers.whole_words(question, "wordpiece") == words
