"""Questions about contexts in SQuAD's JSON, versions 1.1 and 2.0, and the windows of tokens that a model reads.

A context is split into words at spaces and punctuation marks, each with its range in the text, so that an answer is a
range of words and is printed as it stands in the context.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tftrain.files import strict_json
from tftrain.files.errors import DataError
from tftrain.finetune.encoding import Encoded, ExampleEncoder
from tftrain.finetune.tables import FileNotes, json_values, usable
from tftrain.tokenizer.pipelines import word_finder
from tftrain.tokenizer.roles import Roles

# Ideographs, kana, and the scripts of Thai, Lao, Myanmar and Khmer, for a class of a regular expression.
SPACELESS = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf"
    "\U0002f800-\U0002fa1f\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\uff66-\uff9f"
)

_EXPECTED = "expected SQuAD's JSON: data, paragraphs, context, qas, id, question, answers"
_KINDS = {str: "a text or a whole number", int: "a whole number", bool: "true or false"}


class Question(NamedTuple):
    """A question about a context."""

    place: str  # file and id, for messages
    id: str
    text: str
    context: str
    answers: tuple[str, ...]  # correct ones; empty if there is none
    starts: tuple[int, ...]  # the first character of each answer


class Window(NamedTuple):
    """A sequence with a question and a part of its context."""

    question: int  # its index
    first: int  # index of the first token of the part in the sequence
    words: np.ndarray  # index of the word of each token of the part
    spans: list[tuple[int, int]]  # first character and end of each word of the context
    is_best: np.ndarray  # which tokens have more context on both sides here than in any other window
    answer: tuple[int, int]  # first and last token of the answer in the sequence; (0, 0) if it is not in the part


def read_questions(path: str, skips: bool = False, notes: FileNotes | None = None) -> list[Question]:
    """Reads the questions of SQuAD's JSON, nested or with one question a row, as `datasets` writes it.

    For `skips` and `notes`, see `tables.usable`. Raises DataError if the file is in another format, or an answer is
    elsewhere in its context; the message names the question.
    """
    seen: set[str] = set()

    def question(numbered: tuple[int, tuple[Any, Any, str]]) -> Question:
        number, (entry, context, expected) = numbered
        if not isinstance(entry, dict) or entry.get("question") is None:
            fault = f"no {expected} and no question; {_EXPECTED}" if expected else entry
            raise DataError(f"{path}, question {number}: {fault}")
        identity = _field(entry, "id", str, f"{path}, question {number}")
        found = _question(entry, identity, context, f"{path}, question {identity}")
        if identity in seen:
            raise DataError(f"{found.place}: the id occurs for the second time")
        seen.add(identity)
        return found

    rows = json_values(path)
    entries = [entry for row in rows for entry in ([(row.fault, None, "")] if row.fault else _entries(row.values))]
    if not entries:
        raise DataError(f"{path}: no questions in it")
    return usable(path, question, enumerate(entries, 1), skips, notes)


def _entries(value: Any, context: Any = None, expected: str = "data") -> Iterator[tuple[Any, Any, str]]:
    """Yields each question with its context, and the field that would have the questions if this is none."""
    inner = {"data": "paragraphs", "paragraphs": "qas", "qas": "answers"}
    nested = next((name for name in inner if isinstance(value, dict) and isinstance(value.get(name), list)), None)
    if nested:
        context, expected, value = value.get("context", context), inner[nested], value[nested]
    if not isinstance(value, list):
        yield value, context, expected
        return
    for each in value:
        yield from _entries(each, context, expected)


def _field(entry: Any, name: str, kind: type, where: str) -> Any:
    """Returns a field as a text, a whole number or a truth value, where its JSON has that in any plain form."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if value is None:
        raise DataError(f"{where}: no {name}; {_EXPECTED}")
    if kind is bool:
        plain = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    elif kind is int:
        is_whole = not isinstance(value, bool) and re.fullmatch(r"-?[0-9]{1,18}(\.0)?", str(value))
        plain = int(str(value).removesuffix(".0")) if is_whole else None
    else:
        plain = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
        plain = None if plain and re.search("[\ud800-\udfff]", plain) else plain
    if plain is None:
        raise DataError(f"{where}: {name} is {strict_json.shown(value)}; expected {_KINDS[kind]}")
    return plain


def _question(entry: dict, identity: str, context: Any, where: str) -> Question:
    context = _field({"context": entry.get("context", context)}, "context", str, where)
    is_impossible = entry.get("is_impossible") is not None and _field(entry, "is_impossible", bool, where)
    answers = [] if is_impossible else entry.get("answers")
    if isinstance(answers, dict):  # Lists of texts and of starts.
        texts, starts = (each if isinstance(each := answers.get(n), list) else [each] for n in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise DataError(f"{where}: {len(texts)} texts of answers and {len(starts)} of answer_start")
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(answers, list):
        raise DataError(f"{where}: no answers; {_EXPECTED}, or is_impossible")
    pairs = [(_field(each, "text", str, where), _field(each, "answer_start", int, where)) for each in answers]
    pairs = [pair for pair in pairs if pair != ("", -1)]
    for text, start in pairs:
        if not text.strip() or start < 0 or context[start : start + len(text)] != text:
            there = context[max(start, 0) : max(start, 0) + len(text)]
            difference = f"the answer is {text[:40]!r}, but at character {start} the context has {there[:40]!r}"
            raise DataError(f"{where}: {difference}")
    texts, starts = zip(*pairs, strict=True) if pairs else ((), ())
    return Question(where, identity, _field(entry, "question", str, where), context, texts, starts)


def longest_query(max_query_length: int, max_seq_length: int, roles: Roles) -> int:
    """Returns the most tokens of a question: at least one token of the context fits beside it."""
    return min(max_query_length, max_seq_length - roles.around(2) - 1)


@functools.lru_cache(maxsize=2)  # The questions of a context follow each other.
def word_spans(context: str, tokenizer_type: str, model: bytes | None = None) -> list[tuple[int, int]]:
    """Returns first character and end of each word; between spaces for kinds whose tokens may have signs and letters.

    Punctuation marks and ideographs are words, and so are the added tokens of `model`, see `word_finder`.
    """
    if tokenizer_type not in ("wordpiece", "bpe"):
        return [match.span() for match in re.finditer(r"\S+", context)]
    return word_finder(model)(context)


def divide(
    questions: Sequence[Question], encoder: ExampleEncoder, tokenizer_type: str, stride: int, max_query_length: int
) -> tuple[list[Window], list[Encoded]]:
    """Makes the windows of questions, and their token ids, such as [CLS] question [SEP] part of the context [SEP].

    Args:
        stride: tokens between the beginnings of two windows of a context.
        max_query_length: most tokens of a question.

    Raises:
        DataError: nothing of the context fits into a window.
    """
    windows, encoded = [], []
    asked = encoder.tokenize([question.text for question in questions])
    tokens_of = functools.lru_cache(maxsize=1)(_tokens)  # The questions of a context follow each other.
    for number, (question, query) in enumerate(zip(questions, asked, strict=True)):
        spans, ids, words = tokens_of(question.context, encoder, tokenizer_type)
        query = query[:max_query_length]
        capacity = encoder.max_seq_length - len(query) - encoder.roles.around(2)
        if capacity < 1:
            remedy = "give a larger --max_seq_length or a smaller --max_query_length"
            fault = f"{len(query)} tokens of the question leave no tokens for the context"
            raise DataError(f"{question.place}: {fault}; {remedy}")
        step = min(stride, capacity)
        begins = [0, *range(step, len(ids) - capacity + step, step)]
        best = _best_windows(len(ids), begins, capacity)
        answer = _answer_tokens(question, spans, words)
        for index, begin in enumerate(begins):
            end, first = min(begin + capacity, len(ids)), len(query) + encoder.roles.around(2) - 1
            inside = answer is not None and begin <= answer[0] and answer[1] < end
            labels = (answer[0] - begin + first, answer[1] - begin + first) if inside else (0, 0)
            windows.append(Window(number, first, words[begin:end], spans, best[begin:end] == index, labels))
            encoded.append(encoder.join([query, ids[begin:end]]))
    return windows, encoded


def _tokens(context: str, encoder: ExampleEncoder, tokenizer_type: str):
    """Returns the words' places, the token ids, and the word of each token."""
    spans = word_spans(context, tokenizer_type, encoder.with_added)
    after_space = (context[begin - 1 : begin] == " " for begin, _ in spans)
    pieces = encoder.words([context[begin:end] for begin, end in spans], after_space)
    words = np.repeat(np.arange(len(spans)), [len(piece) for piece in pieces])
    return spans, np.concatenate([np.zeros([0], np.int32), *pieces]), words


def _best_windows(tokens: int, begins: Sequence[int], capacity: int) -> np.ndarray:
    """Returns for each token the window in which it has the most context: int [tokens].

    As in the original BERT, that is the smaller of both sides, and a hundredth of the window's length.
    """
    places = np.arange(tokens)
    scores = []
    for begin in begins:
        end = min(begin + capacity, tokens)
        score = np.minimum(places - begin, end - 1 - places) + 0.01 * (end - begin)
        scores.append(np.where((places >= begin) & (places < end), score, -np.inf))
    return np.argmax(scores, axis=0)


def _answer_tokens(question: Question, spans: Sequence[tuple[int, int]], words: np.ndarray) -> tuple[int, int] | None:
    """Returns the first and the last token of the first answer; None if there is none, or it has no tokens."""
    if not question.answers:
        return None
    begin, end = question.starts[0], question.starts[0] + len(question.answers[0])
    inside = [index for index, (first, last) in enumerate(spans) if first < end and last > begin]
    places = np.flatnonzero(np.isin(words, inside))
    return (int(places[0]), int(places[-1])) if len(places) else None
