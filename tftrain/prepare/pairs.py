"""Sentence pairs for masked-LM and next-sentence training (BERT, arXiv 1810.04805, section 3.1 and appendix A.2).

Without next sentences, an example has one text, A, the next tokens of a document (RoBERTa, arXiv 1907.11692, its
DOC-SENTENCES).

A pair consists of two texts, A and B, which fill a sequence. In half of the pairs B follows A in the same document.
In the others B comes from another document, and the text after A goes into the next pair. A small share of the pairs
has a random, smaller length, so training includes short sequences.

A document is a stream of tokens. A pair takes as many tokens as fit, or the tokens up to the document's end, and the
next pair goes on where it ends. So a sentence that is longer than a sequence is cut, and every token is in some pair.

Nothing but the text tells a model the label. The lengths of A and B are drawn before the label. A random B has exactly
as many tokens as the B that it replaces, and starts and ends inside or at the edge of a sentence as the replaced B
does.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tftrain.prepare.objective import TokenizedText

_RANDOM_NEXT = 0.5
_BLOCK = 100
# Random sentences that are examined for a random B. One in 20 fits as a rule, if B ends at the end of a sentence.
_CANDIDATES = 64


class Pair(NamedTuple):
    """One example before masking, as first positions of A and B in `TokenizedText.tokens` and those after them."""

    first: int
    first_end: int
    second: int
    second_end: int
    next_sentence_label: int  # 1 if B is random, 0 if it follows A

    @property
    def second_segment_start(self) -> int:
        """The position of the first token of B in [CLS] A [SEP] B [SEP]; after the last one of [CLS] A [SEP]."""
        return self.first_end - self.first + 2


def make_pairs(
    text: TokenizedText, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator
) -> Iterator[Pair]:
    """Yields the pairs of a text. They contain every token, except documents of one token.

    If the text has one document, all pairs are consecutive.

    Args:
        text: the documents; its passages are sentences.
        max_seq_length: maximum number of tokens of a pair, including [CLS] and both [SEP]; at least 8.
        short_seq_prob: share of the pairs with a random length.
    """
    max_tokens = max_seq_length - 3
    source = _RandomTexts(text, rng)
    boundaries = text.passages.tolist()
    labels = _labels(rng)
    for document, (start, stop) in enumerate(pairwise(text.documents.tolist())):
        if stop - start < 2:
            continue
        inner = boundaries[bisect_right(boundaries, start) : bisect_left(boundaries, stop)]
        longest_second = source.longest_other(document)
        begin = start
        while begin < stop:
            length = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_seq_prob else max_tokens
            end = min(begin + length, stop)
            if end == stop and begin > start and (not inner or inner[-1] <= begin):
                # No sentence ends inside the rest of the document, so the pair begins one sentence earlier.
                begin = max(min(begin, inner[-2] if len(inner) > 1 else start), end - length)
            middle = _border(inner, begin, end, longest_second, rng)
            if longest_second and next(labels):
                second = source.draw(document, middle, end)
                yield Pair(begin, middle, second, second + end - middle, 1)
                begin = middle
            else:
                yield Pair(begin, middle, middle, end, 0)
                begin = end


def make_texts(
    text: TokenizedText, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator
) -> Iterator[Pair]:
    """Yields examples without a second text, which contain every token; the arguments are those of `make_pairs`."""
    max_tokens = max_seq_length - 2
    for begin, stop in pairwise(text.documents.tolist()):
        while begin < stop:
            length = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_seq_prob else max_tokens
            end = min(begin + length, stop)
            yield Pair(begin, end, end, end, 0)
            begin = end


def _labels(rng: np.random.Generator) -> Iterator[bool]:
    """Yields random labels. Half of each block are true, so that the share of a small text is near a half as well.

    In small blocks a label would tell much of the next one, and with it of the next example's lengths.
    """
    block = np.arange(_BLOCK) < _RANDOM_NEXT * _BLOCK
    while True:
        yield from rng.permutation(block).tolist()


def _border(inner: list[int], begin: int, end: int, longest_second: int, rng: np.random.Generator) -> int:
    """Returns the position of the first token of B: the start of a sentence, if one starts inside.

    B has at most `longest_second` tokens, if this is not 0, because no other document has more for a random B.
    """
    lowest = max(begin + 1, end - longest_second) if longest_second else begin + 1
    low, high = bisect_left(inner, lowest), bisect_left(inner, end)
    return inner[int(rng.integers(low, high))] if low < high else int(rng.integers(lowest, end))


class _RandomTexts:
    """Draws texts from other documents."""

    def __init__(self, text: TokenizedText, rng: np.random.Generator):
        self._text, self._rng = text, rng
        self._is_boundary = np.zeros(len(text.tokens) + 1, bool)
        self._is_boundary[text.passages] = True
        self._sizes = np.diff(text.documents)
        self._by_size = np.argsort(self._sizes, kind="stable")
        self._sorted_sizes = self._sizes[self._by_size]

    def longest_other(self, document: int) -> int:
        """Returns the number of tokens of the longest other document; 0 if there is none."""
        if len(self._sizes) < 2:
            return 0
        longest = self._by_size[-1]
        return int(self._sorted_sizes[-2] if longest == document else self._sorted_sizes[-1])

    def draw(self, document: int, middle: int, end: int) -> int:
        """Returns the first position of a random text that can replace [middle, end) of a document.

        The text has the same number of tokens, which is at most `longest_other`, and is inside one other document.
        """
        text, length = self._text, end - middle
        if self._is_boundary[middle]:
            starts = text.passages[self._rng.integers(0, len(text.passages) - 1, _CANDIDATES)]
        else:
            starts = self._rng.integers(0, len(text.tokens), _CANDIDATES)
        owners = np.searchsorted(text.documents, starts, side="right") - 1
        inside = (owners != document) & (starts + length <= text.documents[owners + 1])
        starts = starts[inside]
        is_boundary = self._is_boundary
        alike = (is_boundary[starts] == is_boundary[middle]) & (is_boundary[starts + length] == is_boundary[end])
        for fitting in (starts[alike], starts):
            if len(fitting):
                return int(fitting[0])
        # A document that has enough tokens, and in it the start of a sentence before enough tokens.
        long_enough = self._by_size[np.searchsorted(self._sorted_sizes, length) :]
        other = int(self._rng.choice(long_enough[long_enough != document]))
        begin, last = int(text.documents[other]), int(text.documents[other + 1]) - length
        low, high = np.searchsorted(text.passages, begin), np.searchsorted(text.passages, last, side="right")
        return int(text.passages[self._rng.integers(low, high)])
