"""Answers from the logits of windows, and their scores.

F1 and exact match are those of SQuAD's own script for version 2.0 (Rajpurkar et al., arXiv 1806.03822): texts without
case, punctuation marks and articles are compared as a whole and as bags of words, with the best of the correct answers.
A question without an answer is right if nothing is predicted. The script for 1.1 differs only where an answer has
nothing but punctuation marks and articles. As in MLQA's script (Lewis et al., arXiv 1910.07475), the punctuation marks
are those of Unicode, characters of scripts without spaces are words, and Arabic words lose their article.
"""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.finetune.scorers import Scorer
from tftrain.finetune.squad import SPACELESS, Question, Window, word_spans
from tftrain.tokenizer.normalization import punctuation

_ARTICLES = re.compile(r"\b(a|an|the)\b|\b\u0627\u0644(?=\w)")
_WORDS = re.compile(f"[{SPACELESS}]|[^\\s{SPACELESS}]+")


def normalized(text: str) -> str:
    """Returns a text in lower case, without punctuation marks, articles and superfluous spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_no_punctuation())).split())


@functools.cache
def _no_punctuation() -> dict[int, None]:
    return dict.fromkeys(map(ord, punctuation()))


def whole_words(question: Question, tokenizer_type: str) -> str:
    """Returns the words of the context that the first answer of a question touches, "" if there is none."""
    begin = question.starts[0] if question.starts else 0
    end = begin + len(question.answers[0]) if question.answers else 0
    spans = [span for span in word_spans(question.context, tokenizer_type) if span[0] < end and span[1] > begin]
    return question.context[spans[0][0] : spans[-1][1]] if spans else ""


def exact_match(predicted: str, correct: str) -> float:
    """Returns 1 if two answers are equal but for what `normalized` takes away, else 0."""
    return float(normalized(predicted) == normalized(correct))


def f1(predicted: str, correct: str) -> float:
    """Returns the harmonic mean of precision and recall over words; if one answer is empty, 1 if both are."""
    ours, theirs = _WORDS.findall(normalized(predicted)), _WORDS.findall(normalized(correct))
    if not ours or not theirs:
        return float(ours == theirs)
    same = sum((Counter(ours) & Counter(theirs)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def score_answers(questions: Sequence[Question], predicted: Mapping[str, str]) -> dict[str, float]:
    """Returns "f1" and "exact_match", in percent, over questions; `predicted` has an answer by id, "" for none.

    If some questions have no answer, the result has the same of both kinds: "has_answer_f1", "no_answer_f1" and so on.
    """
    sums: dict[str, list[tuple[float, float]]] = defaultdict(list)
    some_have_none = any(not question.answers for question in questions)
    for question in questions:
        correct = [answer for answer in question.answers if normalized(answer)] or [""]
        answer = predicted[question.id]
        pair = max(f1(answer, each) for each in correct), max(exact_match(answer, each) for each in correct)
        sums[""].append(pair)
        if some_have_none:
            sums["has_answer_" if question.answers else "no_answer_"].append(pair)
    means = {prefix: np.mean(pairs, axis=0) for prefix, pairs in sums.items()}
    return {
        f"{prefix}{name}": 100 * float(mean[index])
        for prefix, mean in means.items()
        for index, name in enumerate(("f1", "exact_match"))
    }


class Answer(NamedTuple):
    """A candidate: "" with equal ends if there is no answer."""

    text: str
    score: float  # sum of the logits of its ends
    start: int  # its first character in the context
    end: int  # the character after it


class AnswerScorer(Scorer):
    """Scores of answers to the questions of a split."""

    def __init__(
        self, examples: Sequence[tuple[Question, Window]], settings: FineTuningConfig, has_null: bool | None = None
    ):
        """Takes the windows, each with its question, those of a question one after the other.

        `has_null` is whether a question may have no answer; by default, whether one of `examples` has none.
        """
        super().__init__(examples)
        self._settings = settings
        self._has_null = any(not question.answers for question, _ in examples) if has_null is None else has_null

    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns F1 and exact match in percent, given the logits of both ends of each window, [n, S, 2]."""
        answers_by_id = {question.id: (question, answers[0].text) for question, answers in self._answers(outputs)}
        questions = [question for question, _ in answers_by_id.values()]
        return score_answers(questions, {key: text for key, (_, text) in answers_by_id.items()})

    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields id, question, correct answers, prediction and the best candidates of each question."""
        for question, answers in self._answers(outputs):
            yield {
                "id": question.id,
                "question": question.text,
                "label": question.answers,
                "prediction": answers[0].text,
                "n_best": [{**answer._asdict(), "score": round(answer.score, 4)} for answer in answers],
            }

    def _answers(self, outputs: np.ndarray) -> Iterator[tuple[Question, list[Answer]]]:
        """Yields each question whose windows are all there, with its candidates: first what is predicted."""
        groups: dict[int, list[tuple[Question, Window, np.ndarray]]] = defaultdict(list)
        for (question, window), logits in zip(self._examples, outputs, strict=False):
            groups[window.question].append((question, window, logits))
        for group in groups.values():
            yield group[0][0], self._candidates(group)

    def _candidates(self, group: Sequence[tuple[Question, Window, np.ndarray]]) -> list[Answer]:
        settings, null = self._settings, np.inf
        best: dict[str, Answer] = {}
        for question, window, logits in group:
            null = min(null, float(logits[0].sum()))
            for begin, end, score in self._spans(window, logits):
                ends = window.spans[begin][0], window.spans[end][1]
                text = question.context[slice(*ends)]
                if text not in best or score > best[text].score:
                    best.pop(text, None)  # The first one of equal scores is the better one.
                    best[text] = Answer(text, score, *ends)
        ranked = sorted(best.values(), key=lambda answer: -answer.score)[: settings.n_best]
        nothing = Answer("", null, 0, 0)
        if not ranked or (self._has_null and null - ranked[0].score > settings.null_score_threshold):
            return [nothing, *ranked][: settings.n_best]
        return ranked

    def _spans(self, window: Window, logits: np.ndarray) -> Iterator[tuple[int, int, float]]:
        """Yields first and last word and the score of the best ranges of tokens in a window."""
        inside = logits[window.first : window.first + len(window.words)]
        begins = np.argsort(-np.where(window.is_best, inside[:, 0], -np.inf), kind="stable")[: self._settings.n_best]
        ends = np.argsort(-inside[:, 1], kind="stable")[: self._settings.n_best]
        for begin in begins:
            if not window.is_best[begin]:
                continue
            for end in ends:
                words = window.words[begin], window.words[end]
                if begin <= end and words[1] - words[0] < self._settings.max_answer_length:
                    yield int(words[0]), int(words[1]), float(inside[begin, 0] + inside[end, 1])
