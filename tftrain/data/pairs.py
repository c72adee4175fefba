"""Sentence pairs for masked-LM and next-sentence training, as section 3.1 and appendix A.2 of BERT describe them.

A pair is two runs of sentences, A and B, that fill a sequence. Half of the time B is what follows A in its document;
otherwise it is a run from another document, and the sentences that A was going to be followed by are used again. A
small share of the pairs is given a random, smaller length, so that the model meets such sequences in training too.
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
        second_segment_start: where B begins.
        next_sentence_label: 1 if B is a random run, 0 if it follows A.
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
    """Yields the pairs of some documents.

    Args:
        documents: sentences as token ids; neither a document nor a sentence may be empty.
        vocabulary: gives [CLS] and [SEP].
        max_seq_length: tokens of a pair at most, at least 8.
        short_seq_prob: share of the pairs with a random length.
        rng: draws everything that is random.
    """
    cls, sep = vocabulary.id("[CLS]"), vocabulary.id("[SEP]")
    room = max_seq_length - 3
    for number, document in enumerate(documents):
        begin = 0
        while begin < len(document):
            length = int(rng.integers(2, room + 1)) if rng.random() < short_seq_prob else room
            end = _run_end(document, begin, length)
            middle = int(rng.integers(begin + 1, end)) if end - begin > 1 else end
            first = _joined(document[begin:middle])
            random_next = len(documents) > 1 and (middle == end or rng.random() < _RANDOM_NEXT)
            if random_next:
                second, begin = _random_run(documents, number, length - len(first), rng), middle
            else:
                second, begin = _joined(document[middle:end]), end
            if not second:
                # A single sentence with no other document to take from: its halves.
                first, second = first[: len(first) // 2], first[len(first) // 2 :]
            if first and second:
                first, second = _fit(first, second, room, rng)
                yield Pair([cls, *first, sep, *second, sep], len(first) + 2, int(random_next))


def _run_end(document: Document, begin: int, length: int) -> int:
    """Returns where the shortest run of sentences from `begin` ends that has `length` tokens, or the document's end."""
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


def _fit(first: list[int], second: list[int], room: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Cuts the longer of both, token by token and at a random end, until they fit into `room`."""
    spans = [[0, len(first)], [0, len(second)]]
    excess = max(0, len(first) + len(second) - room)
    for at_front in rng.random(excess) < 0.5:
        longer = spans[0] if spans[0][1] - spans[0][0] > spans[1][1] - spans[1][0] else spans[1]
        longer[0 if at_front else 1] += 1 if at_front else -1
    return first[slice(*spans[0])], second[slice(*spans[1])]


def _joined(sentences: Document) -> list[int]:
    return [token for sentence in sentences for token in sentence]
