"""Scores of predictions, against formulas written out here, and the objects of predictions.jsonl."""

import math

import numpy as np
import pytest

from tftrain.finetune import scorers
from tftrain.finetune.conll import Sentence
from tftrain.finetune.tables import TextExample


def texts(labels):
    return [TextExample("x", (f"text {number}",), label) for number, label in enumerate(labels)]


def logits_of(classes, count):
    return np.eye(count, dtype=np.float32)[classes] * 3


def test_two_classes():
    """Matthews' correlation and F1 from the four counts."""
    true, found = np.array([1, 1, 1, 0, 0, 0, 1, 0]), np.array([1, 0, 1, 0, 1, 0, 1, 0])
    tp, tn, fp, fn = (int(((true == a) & (found == b)).sum()) for a, b in ((1, 1), (0, 0), (0, 1), (1, 0)))
    scorer = scorers.ClassScorer(texts(["no" if each == 0 else "yes" for each in true]), ("no", "yes"))
    matthews = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    expected = {"accuracy": 6 / 8, "f1": 2 * tp / (2 * tp + fp + fn), "matthews": matthews}
    assert scorer.scores(logits_of(found, 2)) == pytest.approx(expected)
    names, counts = scorer.confusion(logits_of(found, 2))
    assert names == ("no", "yes")
    assert counts.tolist() == [[tn, fp], [fn, tp]]


def test_predictions_have_probabilities():
    scorer = scorers.ClassScorer(texts(["b"]), ("a", "b"))
    (found,) = scorer.predictions(np.array([[math.log(3), 0]], np.float32))
    assert found.pop("probabilities") == pytest.approx({"a": 0.75, "b": 0.25}, abs=1e-5)
    assert found == {"texts": ("text 0",), "label": "b", "prediction": "a"}


def test_more_classes_have_the_mean_of_their_f1():
    scorer = scorers.ClassScorer(texts("aabc"), tuple("abc"))
    assert scorer.scores(logits_of([0, 1, 1, 2], 3))["f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_several_classes_of_an_example():
    scorer = scorers.MultiLabelScorer(texts([("a",), ("a", "b"), ()]), ("a", "b"))
    outputs = np.array([[1, 1], [1, 1], [-1, -1]], np.float32)
    # Class a: 2 right; class b: 1 right, 1 too many.
    expected = {"f1_micro": 2 * 3 / (2 * 3 + 1), "f1_macro": (1 + 2 / 3) / 2, "exact_match": 2 / 3}
    assert scorer.scores(outputs) == pytest.approx(expected)
    assert [each["prediction"] for each in scorer.predictions(outputs)] == [["a", "b"], ["a", "b"], []]


def test_numbers():
    random = np.random.default_rng(1)
    true, found = random.normal(size=50), random.normal(size=50).astype(np.float32)
    ranks = [np.argsort(np.argsort(each)) for each in (true, found)]
    scores = scorers.NumberScorer(texts(true.tolist())).scores(found[:, None])
    assert scores["pearson"] == pytest.approx(np.corrcoef(true, found)[0, 1])
    assert scores["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert scores["negative_rmse"] == pytest.approx(-math.sqrt(np.mean((true - found) ** 2)))


def test_a_constant_has_no_correlation():
    assert math.isnan(scorers.NumberScorer(texts([1.0, 2.0])).scores(np.zeros([2, 1]))["spearman"])


def test_entities_count_as_a_whole_and_parts_of_a_sentence_are_joined():
    labels = ("B-A", "I-A", "O")
    parts = [
        Sentence("x", 0, ("a", "b"), ("B-A", "I-A"), (1, 3)),
        Sentence("x", 0, ("c",), ("I-A",), (1,)),
        Sentence("x", 1, ("d", "e"), ("O", "B-A"), (1, 2)),
    ]
    outputs = np.full([3, 4], 2, np.float32)
    outputs[0, 1], outputs[0, 3], outputs[1, 1], outputs[2, 1] = 0, 1, 1, 0
    scorer = scorers.EntityScorer(parts, labels)
    # One entity of three words is right; one of one word is missed, another is invented.
    assert scorer.scores(outputs) == pytest.approx({"f1": 0.5, "precision": 0.5, "recall": 0.5})
    first, second = scorer.predictions(outputs)
    assert first == {"words": ["a", "b", "c"], "label": ["B-A", "I-A", "I-A"], "prediction": ["B-A", "I-A", "I-A"]}
    assert second["prediction"] == ["B-A", "O"]


def test_hard_negatives_are_candidates_too():
    outputs = np.stack([np.eye(3), np.eye(3), np.eye(3)[[1, 1, 0]]], axis=1).astype(np.float32)
    outputs[0, 1] = [0.9, 0, 0]
    given = [TextExample("x", ("a", "b", "c"), (1.0, 0.0)), TextExample("x", ("a", "b", "c"), (1.0, 0.0))]
    given.append(TextExample("x", ("a", "b", ""), (1.0,)))
    scores = scorers.PairScorer(given).scores(outputs)  # The text that is missing would be the nearest of the first.
    assert (scores["recall_at_1"], scores["mrr"]) == (1, 1)
    given[2] = given[2]._replace(texts=("a", "b", "c"))
    scores = scorers.PairScorer(given).scores(outputs)
    assert (scores["recall_at_1"], scores["mrr"]) == pytest.approx((2 / 3, (1 / 2 + 1 + 1) / 3))
    assert list(scorers.PairScorer(given).predictions(outputs))[1]["prediction"] == [1.0, 1.0]


def test_embeddings_that_are_no_numbers_are_not_the_nearest():
    outputs = np.full([4, 2, 3], np.nan, np.float32)
    assert scorers.PairScorer(texts([None] * 4)).scores(outputs)["recall_at_1"] == 0


@pytest.mark.parametrize(
    ("labels", "true", "found", "f1"),
    [
        ("person-other location-other O", "location-other location-other", "person-other person-other", 0),
        ("person-other location-other O", "person-other O person-other", "person-other O O", 2 / 3),
        ("ORG O PER", "ORG O PER", "O O PER", 2 / 3),
        ("B-A I-A L-A U-A O", "U-A U-A", "U-A O", 2 / 3),
        ("B-A I-A L-A U-A O", "B-A I-A L-A U-A", "B-A I-A L-A O", 2 / 3),
        ("B-A M-A E-A S-A O", "B-A M-A E-A S-A", "B-A M-A E-A O", 2 / 3),
        *(("S-A O", "S-A S-A", "S-A O", 2 / 3), ("B I O", "B I O B", "B I O O", 2 / 3)),
        *(("B_A I_A O", "B_A I_A O", "B_A O O", 0), ("b-a i-a o", "b-a i-a o", "b-a o o", 0)),
        *(("A-B A-I O", "A-B A-I O", "A-B O O", 0), ("E-mail person O", "E-mail E-mail", "E-mail O", 0)),
        ("B-A I-A [CLS] X O", "B-A X O", "B-A O O", 1),
        ("NOUN VERB X", "NOUN VERB NOUN VERB", "NOUN NOUN NOUN NOUN", 1 / 3),
        ("0 1 2", "0 1", "0 2", 1 / 3),
    ],
)
def test_entities_of_every_scheme_count_as_they_are(labels, true, found, f1, recwarn):
    labels, true, found = labels.split(), true.split(), found.split()
    sentence = Sentence("x", 0, tuple(true), tuple(true), tuple(range(len(true))))
    scorer = scorers.EntityScorer([sentence], labels)
    outputs = np.array([[labels.index(tag) for tag in found]], np.float32)
    assert scorer.scores(outputs)["f1"] == pytest.approx(f1)
    assert not recwarn.list


def test_pairs_that_do_not_belong_together_count_in_the_correlation_alone():
    outputs = np.stack([np.eye(4), np.eye(4)[[0, 1, 3, 2]]], axis=1).astype(np.float32)
    scores = scorers.PairScorer(texts([1.0, 1.0, 0.0, 0.0])).scores(outputs)
    assert (scores["recall_at_1"], scores["mrr"]) == (1, 1)
    assert scores["spearman"] == pytest.approx(1)
