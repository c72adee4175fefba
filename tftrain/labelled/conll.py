"""Words with classes in CoNLL's format: a word and its class a line, an empty line between sentences."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tftrain.input.errors import DataError
from tftrain.labelled.encoding import Encoded, Encoder
from tftrain.labelled.tables import read_text

DOCUMENT_START = "-DOCSTART-"
_SPACES = " \t\r"


class Sentence(NamedTuple):
    """A sentence, or a part of it that fits a sequence."""

    place: str  # file and line of the first word, for messages
    number: int  # of the sentence, from 0
    words: tuple[str, ...]
    tags: tuple[str, ...]  # the class of each word
    places: tuple[int, ...] = ()  # index of each word's first token in the sequence; empty before `divide`


def read_sentences(path: str) -> list[Sentence]:
    """Reads the sentences of a file. Tabs separate the columns of a line that has one, else spaces do.

    Other white space, such as a no-break space, belongs to its word.

    Raises:
        DataError: the file can't be read, has no sentence, or a line has no class; the message names the line.
    """
    sentences: list[Sentence] = []
    words: list[tuple[str, str]] = []
    begin = 1
    for number, line in enumerate(
        [*read_text(path).replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""], start=1
    ):
        line = line.strip(_SPACES)
        columns = [part for column in line.split("\t" if "\t" in line else " ") if (part := column.strip(_SPACES))]
        if not columns or columns[0] == DOCUMENT_START:
            if words:
                sentences.append(Sentence(f"{path}, line {begin}", len(sentences), *zip(*words, strict=True)))
                words.clear()
            continue
        if len(columns) < 2:
            raise DataError(f"{path}, line {number}: {line[:50]!r}; expected a word and its class")
        begin = begin if words else number
        words.append((columns[0], columns[-1]))
    if not sentences:
        raise DataError(f"{path}: no examples in it")
    return sentences


def divide(sentences: Sequence[Sentence], encoder: Encoder, unknown_id: int) -> tuple[list[Sentence], list[Encoded]]:
    """Returns the parts of sentences with the places of their words, and their token ids.

    A long sentence is divided between words. A word that the tokenizer has nothing for, such as a control character, is
    the token `unknown_id`.
    """
    words = [(word, place > 0) for sentence in sentences for place, word in enumerate(sentence.words)]
    pieces = iter(encoder.words(*zip(*words, strict=True)) if words else ())
    most, parts, encoded = encoder.max_seq_length - 2, [], []
    for sentence in sentences:
        ids, places, first = [], [], 0
        for index in range(len(sentence.words)):
            own = next(pieces)
            own = (own if len(own) else np.array([unknown_id], np.int32))[:most]
            if sum(map(len, ids)) + len(own) > most:
                parts.append(_part(sentence, first, places))
                encoded.append(encoder.join([np.concatenate(ids)]))
                ids, places, first = [], [], index
            places.append(1 + sum(map(len, ids)))
            ids.append(own)
        parts.append(_part(sentence, first, places))
        encoded.append(encoder.join([np.concatenate(ids)]))
    return parts, encoded


def _part(sentence: Sentence, first: int, places: Sequence[int]) -> Sentence:
    end = first + len(places)
    return sentence._replace(words=sentence.words[first:end], tags=sentence.tags[first:end], places=tuple(places))
