"""Scores of predictions over a whole split, by scikit-learn, scipy and seqeval; and the predictions as JSON objects."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tftrain.labelled.conll import Sentence
from tftrain.labelled.examples import TextExample
from tftrain.labelled.scorer import Scorer

METRICS = {
    "classification": ("accuracy", "f1", "matthews"),
    "multi_label": ("f1_micro", "f1_macro", "exact_match"),
    "regression": ("spearman", "pearson", "negative_rmse"),
    "token_classification": ("f1", "precision", "recall"),
    "question_answering": ("f1", "exact_match"),
    "embedding": ("recall_at_1", "mrr", "spearman"),
}
_ROWS_AT_ONCE = 1024


class ClassScorer(Scorer):
    """Scores of one class for each example.

    F1 is that of the second of two classes, as in GLUE; of more classes, the mean of their F1 ("macro").
    """

    metrics = METRICS["classification"]

    def __init__(self, examples: Sequence[TextExample], labels: Sequence[str]):
        """Takes the examples with their labels, and the classes by number."""
        self._examples, self._labels = examples, labels

    @functools.cached_property
    def _true(self) -> np.ndarray:
        numbers = {label: number for number, label in enumerate(self._labels)}
        return np.array([numbers[example.label] for example in self._examples])

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns accuracy, F1 and Matthews' correlation of logits, [n, classes]."""
        from sklearn import metrics

        true, found = self._true[: len(outputs)], outputs.argmax(-1)
        average = "binary" if len(self._labels) == 2 else "macro"
        return {
            "accuracy": float(metrics.accuracy_score(true, found)),
            "f1": float(metrics.f1_score(true, found, average=average, zero_division=0)),
            "matthews": float(metrics.matthews_corrcoef(true, found)),
        }

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields text, label, prediction and the probabilities of all classes."""
        for example, probabilities in zip(self._examples, softmax(outputs), strict=False):
            best = int(probabilities.argmax())
            shares = dict(zip(self._labels, map(_rounded, probabilities), strict=True))
            yield {
                "texts": example.texts,
                "label": example.label,
                "prediction": self._labels[best],
                "probabilities": shares,
            }

    def confusion(self, outputs: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        """Returns the classes and how many examples of each (row) were taken for each (column)."""
        from sklearn import metrics

        numbers = range(len(self._labels))
        return self._labels, metrics.confusion_matrix(self._true[: len(outputs)], outputs.argmax(-1), labels=numbers)


class MultiLabelScorer(Scorer):
    """Scores of any number of classes for each example; a class with a probability above one half is predicted."""

    metrics = METRICS["multi_label"]

    def __init__(self, examples: Sequence[TextExample], labels: Sequence[str]):
        """Takes the examples with their labels, and the classes by number."""
        self._examples, self._labels = examples, labels

    @functools.cached_property
    def _true(self) -> np.ndarray:
        return np.array([[label in example.label for label in self._labels] for example in self._examples])

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns F1 over all decisions and over classes, and the share of exact matches, of logits [n, classes]."""
        from sklearn import metrics

        true, found = self._true[: len(outputs)], outputs > 0
        return {
            "f1_micro": float(metrics.f1_score(true, found, average="micro", zero_division=0)),
            "f1_macro": float(metrics.f1_score(true, found, average="macro", zero_division=0)),
            "exact_match": float(metrics.accuracy_score(true, found)),
        }

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields text, labels, predictions and the probability of each class."""
        for example, logits in zip(self._examples, outputs, strict=False):
            probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
            found = [label for label, logit in zip(self._labels, logits, strict=True) if logit > 0]
            shares = dict(zip(self._labels, map(_rounded, probabilities), strict=True))
            yield {"texts": example.texts, "label": example.label, "prediction": found, "probabilities": shares}


class NumberScorer(Scorer):
    """Scores of a number for each example."""

    metrics = METRICS["regression"]

    def __init__(self, examples: Sequence[TextExample]):
        """Takes the examples with their numbers."""
        self._examples = examples

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns Spearman's and Pearson's correlation and the negative root of the mean squared error; [n, 1]."""
        true, found = np.array([example.label for example in self._examples[: len(outputs)]]), outputs[:, 0]
        rmse = math.sqrt(float(np.mean((true - found) ** 2)))
        return {"spearman": spearman(true, found), "pearson": pearson(true, found), "negative_rmse": -rmse}

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields text, label and prediction."""
        for example, number in zip(self._examples, outputs[:, 0], strict=False):
            yield {"texts": example.texts, "label": example.label, "prediction": _rounded(number)}


class EntityScorer(Scorer):
    """Scores of a class for each word; an entity counts if all its words and its class are right (CoNLL 2003)."""

    metrics = METRICS["token_classification"]

    def __init__(self, sentences: Sequence[Sentence], labels: Sequence[str]):
        """Takes the sentences, in parts that fit a sequence, and the classes by number."""
        self._sentences, self._labels = sentences, labels

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns F1, precision and recall over entities, given the class of each token, [n, S]."""
        from seqeval import metrics

        true, found = [], []
        for sentence in self._joined(outputs):
            true.append(list(sentence.tags))
            found.append(sentence.found)
        given = {"y_true": true, "y_pred": found, "zero_division": 0}
        return {
            "f1": float(metrics.f1_score(**given)),
            "precision": float(metrics.precision_score(**given)),
            "recall": float(metrics.recall_score(**given)),
        }

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields words, labels and predictions of each sentence."""
        for sentence in self._joined(outputs):
            yield {"words": sentence.words, "label": sentence.tags, "prediction": sentence.found}

    def _joined(self, outputs):
        """Yields whole sentences, whose parts follow each other, with the classes that were found."""
        parts = zip(self._sentences, outputs, strict=False)
        for _, group in itertools.groupby(parts, key=lambda part: part[0].number):
            words, tags, found = [], [], []
            for sentence, classes in group:
                words += sentence.words
                tags += sentence.tags
                found += [self._labels[int(classes[place])] for place in sentence.places]
            yield _Found(words, tags, found)


class _Found:
    def __init__(self, words, tags, found):
        self.words, self.tags, self.found = words, tags, found


class PairScorer(Scorer):
    """How near the second text of each pair is to the first, among the second texts of all pairs."""

    metrics = METRICS["embedding"]

    def __init__(self, examples: Sequence[TextExample]):
        """Takes the pairs; if they have numbers, how alike their texts are."""
        self._examples = examples

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns the scores of embeddings, [n, 2, H].

        recall_at_1: how often the partner is the nearest; mrr: the mean of 1 / its rank; spearman: the correlation of
        cosines with the numbers, if there are any.
        """
        first, second = outputs[:, 0], outputs[:, 1]
        ranks = np.empty(len(outputs))
        for begin in range(0, len(outputs), _ROWS_AT_ONCE):
            cosines = first[begin : begin + _ROWS_AT_ONCE] @ second.T
            rows = np.arange(len(cosines))
            own = cosines[rows, begin + rows]
            ranks[begin + rows] = 1 + (cosines > own[:, None]).sum(-1)
        found = {"recall_at_1": float((ranks == 1).mean()), "mrr": float((1 / ranks).mean())}
        labels = [example.label for example in self._examples[: len(outputs)]]
        if None not in labels:
            found["spearman"] = spearman(np.array(labels), (first * second).sum(-1))
        return found

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields the texts, the label and the cosine of their embeddings."""
        for example, pair in zip(self._examples, outputs, strict=False):
            yield {"texts": example.texts, "label": example.label, "prediction": _rounded(pair[0] @ pair[1])}


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns probabilities, fp64, of logits [n, classes]."""
    exponents = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Returns Spearman's rank correlation; NaN if one side is constant."""
    return _correlation("spearmanr", first, second)


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Returns Pearson's correlation; NaN if one side is constant."""
    return _correlation("pearsonr", first, second)


def _correlation(name, first, second):
    from scipy import stats

    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(getattr(stats, name)(first, second).statistic)


def _rounded(value: float) -> float:
    return round(float(value), 6)
