"""Scores that need the predictions for a whole split, not only sums over micro-batches; predictions as JSON objects."""

import abc
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tftrain.finetune.entities import Scheme
from tftrain.finetune.ranking import DEEPEST, candidate_scores, ranking_scores

_ROWS_AT_ONCE = 1024


class Scorer(abc.ABC):
    """Judges what a task predicts for the examples of a split; `predictions` needs no labels."""

    def __init__(self, examples: Sequence, labels: Sequence[str] = ()):
        self._examples, self._labels = examples, labels

    @abc.abstractmethod
    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns the scores by name; NaN where one is not defined.

        Args:
            outputs: of the first examples of the split, in order: fp32 [n, ...], see `tasks.Task.compute`.
        """

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields a JSON object for each example."""
        for example, output in zip(self._examples, outputs, strict=False):
            yield {"texts": example.texts, "label": example.label, **self._predicted(output)}

    def _named(self, probabilities: np.ndarray) -> dict[str, float]:
        return dict(zip(self._labels, map(rounded, probabilities), strict=True))

    def confusion(self, outputs: np.ndarray) -> tuple[Sequence[str], np.ndarray] | None:
        """Returns the classes and how many examples of each (row) were taken for each (column), int [n, n], if any."""
        return None


class ClassScorer(Scorer):
    """Scores of one class for each text.

    F1 is that of the second of two classes, as in GLUE; of more classes, the mean of their F1 ("macro").
    """

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns accuracy, F1 and Matthews' correlation of logits, [n, classes]."""
        from sklearn import metrics

        true, predicted = self._numbers(outputs), outputs.argmax(-1)
        average = "binary" if len(self._labels) == 2 else "macro"
        return {
            "accuracy": float(metrics.accuracy_score(true, predicted)),
            "f1": float(metrics.f1_score(true, predicted, average=average, zero_division=0)),
            "matthews": float(metrics.matthews_corrcoef(true, predicted)),
        } | candidate_scores(self._examples, outputs[:, -1] - outputs[:, 0])

    def confusion(self, outputs: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        """Returns the classes and the counts of logits, [n, classes]."""
        from sklearn import metrics

        predicted, numbers = outputs.argmax(-1), range(len(self._labels))
        return self._labels, metrics.confusion_matrix(self._numbers(outputs), predicted, labels=numbers)

    def _numbers(self, outputs: np.ndarray) -> np.ndarray:
        numbers = {label: number for number, label in enumerate(self._labels)}
        return np.array([numbers[example.label] for example in self._examples[: len(outputs)]])

    def _predicted(self, output: np.ndarray) -> dict[str, Any]:
        exponents = np.exp(output.astype(np.float64) - output.max())
        probabilities = exponents / exponents.sum()
        best = self._labels[int(probabilities.argmax())]
        return {"prediction": best, "probabilities": self._named(probabilities)}


class MultiLabelScorer(Scorer):
    """Scores of any number of classes for each text; a class with a probability above one half is predicted."""

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns F1 over all decisions and over classes, and the share of exact matches, of logits [n, classes]."""
        from sklearn import metrics

        examples, predicted = self._examples[: len(outputs)], outputs > 0
        true = np.array([[label in example.label for label in self._labels] for example in examples])
        return {
            "f1_micro": float(metrics.f1_score(true, predicted, average="micro", zero_division=0)),
            "f1_macro": float(metrics.f1_score(true, predicted, average="macro", zero_division=0)),
            "exact_match": float(metrics.accuracy_score(true, predicted)),
        }

    def _predicted(self, output: np.ndarray) -> dict[str, Any]:
        predicted = [label for label, logit in zip(self._labels, output, strict=True) if logit > 0]
        return {"prediction": predicted, "probabilities": self._named(1 / (1 + np.exp(-output.astype(np.float64))))}


class NumberScorer(Scorer):
    """Scores of a number for each text."""

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns Spearman's and Pearson's correlation and the negative root of the mean squared error, of [n, 1]."""
        true, predicted = np.array([example.label for example in self._examples[: len(outputs)]]), outputs[:, 0]
        rmse = math.sqrt(float(np.mean((true - predicted) ** 2)))
        correlations = {name: _correlation(f"{name}r", true, predicted) for name in ("spearman", "pearson")}
        return {**correlations, "negative_rmse": -rmse} | candidate_scores(self._examples, predicted)

    def _predicted(self, output: np.ndarray) -> dict[str, Any]:
        return {"prediction": rounded(output[0])}


class EntityScorer(Scorer):
    """Scores of a class for each word; an entity counts if all its words and its class are right (CoNLL 2003).

    The examples are sentences, in parts that fit a sequence. `entities.Scheme` says what is an entity.
    """

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns F1, precision and recall, given the class of each token, [n, S].

        They are those of entities; of classes that are none, such as parts of speech, means over the classes.
        """
        sentences, scheme = list(self.predictions(outputs)), Scheme(self._labels)
        true, predicted = ([scheme.tags(each[name]) for each in sentences] for name in ("label", "prediction"))
        if scheme.has_entities:
            from seqeval import metrics

            options = {"y_true": true, "y_pred": predicted}
        else:
            from sklearn import metrics

            options = {"y_true": list(itertools.chain(*true)), "y_pred": list(itertools.chain(*predicted))}
            options["average"] = "macro"
        names = {"f1": metrics.f1_score, "precision": metrics.precision_score, "recall": metrics.recall_score}
        return {name: float(score(**options, zero_division=0)) for name, score in names.items()}

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields words, labels and predictions of each sentence, whose parts follow each other."""
        parts = zip(self._examples, outputs, strict=False)
        for _, group in itertools.groupby(parts, key=lambda part: part[0].number):
            words, tags, predicted = [], [], []
            for sentence, classes in group:
                words += sentence.words
                tags += sentence.tags
                predicted += [self._labels[int(classes[place])] for place in sentence.places]
            yield {"words": words, "label": tags, "prediction": predicted}


class PairScorer(Scorer):
    """How near the second text of each sample is to the first, among the second and further texts of all samples.

    If pairs have numbers, these say how alike their texts are; at 0 or less they do not belong together.
    """

    def belong_together(self, count: int) -> np.ndarray:
        """Returns whether the first two texts of each of the first samples belong together, bool [count]."""
        labels = self._numbers(count)
        return np.array([label is None or label > 0 for label in labels])

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns the scores of embeddings, [n, k, H].

        recall_at_1: how often the partner is the nearest; mrr: the mean of 1 / its rank; others: see `ranking`;
        spearman: the correlation of cosines with the numbers, if there are any. An equal text does not come before.
        """
        first, second, candidates = outputs[:, 0], outputs[:, 1], outputs[:, 1:].reshape(-1, outputs.shape[-1])
        texts = [text for example in self._examples[: len(outputs)] for text in example.texts[1:]]
        missing = [number for number, text in enumerate(texts) if text == ""]
        ranks = np.empty(len(outputs))
        for begin in range(0, len(outputs), _ROWS_AT_ONCE):
            cosines = first[begin : begin + _ROWS_AT_ONCE] @ candidates.T
            rows = np.arange(len(cosines))
            own = cosines[rows, (begin + rows) * (outputs.shape[1] - 1)]
            cosines[:, missing] = -np.inf
            ranks[begin + rows] = 1 + (~(cosines <= own[:, None])).sum(-1)  # NaN is near to nothing.
        labels = self._numbers(len(outputs))
        ranks = ranks[self.belong_together(len(outputs))]
        scores = {"recall_at_1": _mean(ranks == 1), "mrr": _mean(1 / ranks)}
        scores |= ranking_scores(([0] * (int(min(rank, DEEPEST + 1)) - 1) + [1], [1]) for rank in ranks)
        if None not in labels:
            scores["spearman"] = _correlation("spearmanr", np.array(labels), (first * second).sum(-1))
        return scores

    def _predicted(self, output: np.ndarray) -> dict[str, Any]:
        cosines = [rounded(output[0] @ other) for other in output[1:]]
        return {"prediction": cosines[0] if len(cosines) == 1 else cosines}

    def _numbers(self, count: int) -> list[float | None]:
        return [None if isinstance(each.label, tuple) else each.label for each in self._examples[:count]]


class CompletionScorer(Scorer):
    """Scores of completions. The examples are rows of a batch, each with those that are packed in it."""

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns the scores of the cross-entropy of each token, and 1 where the best one is right: [rows, S, 2].

        negative_perplexity: -exp of the mean cross-entropy of the completions' tokens; exact_match: the share of
        completions of which every token is the best one, so that greedy generation gives just them.
        """
        completions = list(self._completions(outputs))
        entropy = np.concatenate([tokens for _, tokens in completions])[:, 0]
        return {
            "negative_perplexity": -_perplexity(entropy),
            "exact_match": float(np.mean([_is_exact(*each) for each in completions])),
        }

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields the texts, the perplexity and whether all tokens are the best ones, in the order of the file."""
        for example, tokens in sorted(self._completions(outputs), key=lambda each: each[0].number):
            yield {
                "prompt": example.prompt,
                "completion": example.completion,
                "perplexity": rounded(_perplexity(tokens[:, 0])),
                "exact_match": _is_exact(example, tokens),
            }

    def _completions(self, outputs: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
        for row, output in zip(self._examples, outputs, strict=False):
            yield from ((example, output[places]) for example, places in row)


# By --task; that of question_answering is `squad_answers.AnswerScorer`.
SCORERS: dict[str, type[Scorer]] = {
    "classification": ClassScorer,
    "multi_label": MultiLabelScorer,
    "regression": NumberScorer,
    "token_classification": EntityScorer,
    "embedding": PairScorer,
    "completion": CompletionScorer,
}


def _perplexity(entropy: np.ndarray) -> float:
    return math.exp(min(entropy.astype(np.float64).mean(), 700.0))


def _is_exact(example: Any, tokens: np.ndarray) -> bool:
    """Whether every token of a completion is the best one; of a cut one that is not known."""
    return bool(tokens[:, 1].all()) and not example.is_cut


def _correlation(name: str, first: np.ndarray, second: np.ndarray) -> float:
    """Returns the correlation that a function of scipy.stats computes; NaN if one side is constant."""
    from scipy import stats

    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(getattr(stats, name)(first, second).statistic)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def rounded(value: float) -> float:
    """Returns a number with the digits of predictions.jsonl."""
    return round(float(value), 6)
