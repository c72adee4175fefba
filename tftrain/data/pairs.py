"""Sentence pairs for masked-LM and next-sentence training (BERT, arXiv 1810.04805, section 3.1 and appendix A.2).

A pair consists of two segments, A and B, which are runs of sentences and fill a sequence. In half of the pairs B
follows A in the same document. In the others B comes from another document, and the sentences after A go into the next
pair. A small share of the pairs has a random, smaller length, so training includes short sequences.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tftrain.data.vocabulary import Vocabulary

Document = list[list[int]]
_RANDOM_NEXT = 0.5


class Pair(NamedTuple):
    """One example before masking.

    Attributes:
        input_ids: [CLS] A [SEP] B [SEP].
        second_segment_start: position of the first token of B.
        next_sentence_label: 1 if B is random, 0 if it follows A.
    """

    input_ids: list[int]
    second_segment_start: int
    next_sentence_label: int


def make_pairs(
    documents: Sequence[Document],
    vocabulary: Vocabulary,
    max_seq_length: int,
    short_seq_prob: float,
    rng: np.random.Generator,
) -> Iterator[Pair]:
    """Yields the pairs of a list of documents.

    Args:
        documents: sentences as token ids. No document and no sentence is empty.
        vocabulary: defines the ids of [CLS] and [SEP].
        max_seq_length: maximum number of tokens of a pair, including [CLS] and both [SEP]; at least 8.
        short_seq_prob: share of the pairs with a random length.
        rng: source of all random choices.
    """
    cls, sep = vocabulary.id("[CLS]"), vocabulary.id("[SEP]")
    max_tokens = max_seq_length - 3
    for number, document in enumerate(documents):
        begin = 0
        while begin < len(document):
            length = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_seq_prob else max_tokens
            end = _run_end(document, begin, length)
            middle = int(rng.integers(begin + 1, end)) if end - begin > 1 else end
            first = _joined(document[begin:middle])
            random_next = len(documents) > 1 and (middle == end or rng.random() < _RANDOM_NEXT)
            if random_next:
                second, begin = _random_run(documents, number, length - len(first), rng), middle
            else:
                second, begin = _joined(document[middle:end]), end
            if not second:
                # There is one sentence and no other document: the halves of the sentence are the segments.
                first, second = first[: len(first) // 2], first[len(first) // 2 :]
            if first and second:
                first, second = _fit(first, second, max_tokens, rng)
                yield Pair([cls, *first, sep, *second, sep], len(first) + 2, int(random_next))


def _run_end(document: Document, begin: int, length: int) -> int:
    """Returns the end of the shortest run of sentences from `begin` with `length` tokens, or the document's end."""
    total = 0
    for end in range(begin, len(document)):
        total += len(document[end])
        if total >= length:
            return end + 1
    return len(document)


def _random_run(documents: Sequence[Document], own: int, length: int, rng: np.random.Generator) -> list[int]:
    other = int(rng.integers(len(documents) - 1))
    document = documents[other + (other >= own)]
    begin = int(rng.integers(len(document)))
    return _joined(document[begin : _run_end(document, begin, max(length, 1))])


def _fit(first: list[int], second: list[int], max_tokens: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Removes tokens from a random end of the longer segment until both fit into `max_tokens`."""
    spans = [[0, len(first)], [0, len(second)]]
    excess = max(0, len(first) + len(second) - max_tokens)
    for cut_front in rng.random(excess) < 0.5:
        longer = spans[0] if spans[0][1] - spans[0][0] > spans[1][1] - spans[1][0] else spans[1]
        longer[0 if cut_front else 1] += 1 if cut_front else -1
    return first[slice(*spans[0])], second[slice(*spans[1])]


def _joined(sentences: Document) -> list[int]:
    return [token for sentence in sentences for token in sentence]
