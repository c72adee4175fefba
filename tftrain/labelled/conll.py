"""Words with classes in CoNLL's format: a word and its class a line, an empty line between sentences.

Files have more: comments, headers, numbers of the words, columns of other layers. Lines are examples only if their
columns fit the file's others; what is left out is counted.
"""

import collections
import itertools
import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tftrain.host.strict_json import shown
from tftrain.input.errors import DataError
from tftrain.labelled import squad
from tftrain.labelled.classes import class_name
from tftrain.labelled.encoding import Encoded, Encoder
from tftrain.labelled.tables import column_of, read_table, read_text, usable

DOCUMENT_START = "-DOCSTART-"
SPACES = " \t\r"
_COMMENTS = ("#", "//")
_TAG = re.compile(r"[Oo_]|[BIESLUMW][-_].+")
_NUMBERED = re.compile(r"(\d+)([-.]\d+)?")  # CoNLL-U numbers words, ranges of them (1-2) and words left unsaid (1.1)
_WORD_NAMES, _TAG_NAMES = ("tokens", "words"), ("ner_tags", "tags", "labels")
_HEADER_NAMES = ("token", "word", "form", "text", *_WORD_NAMES)

logger = logging.getLogger(__name__)


class Sentence(NamedTuple):
    """A sentence, or a part of it that fits a sequence."""

    place: str  # file and line of the first word, for messages
    number: int  # of the sentence, from 0
    words: tuple[str, ...]
    tags: tuple[str, ...]  # the class of each word
    places: tuple[int, ...] = ()  # index of each word's first token in the sequence; empty before `divide`


class _Line(NamedTuple):
    number: int  # in the file, from 1
    text: str
    columns: list[str]  # none of an empty line

    @property
    def is_boundary(self) -> bool:
        """Whether a sentence ends before the line, which is none."""
        return not self.columns or self.columns[0].startswith(DOCUMENT_START)


class _Layout(NamedTuple):
    """The columns of a file."""

    path: str
    count: int  # of columns
    word: int
    tag: int
    tags: frozenset[str]  # what is in the column of the class
    is_chosen: bool  # whether flags say which columns
    is_numbered: bool  # whether the first column numbers the words


def read_sentences(
    path: str, word_column: str | None = None, tag_column: str | None = None, skips: bool = False, reports: bool = False
) -> list[Sentence]:
    """Reads the sentences of a file. Tabs separate the columns of a line that has one, else spaces do.

    Other white space, such as a no-break space, belongs to its word. A line that begins with # or // is a comment if
    its columns or its class are not those of the other lines. JSON has lists of words and classes.

    Args:
        word_column, tag_column: number of the column, from 0, or its name in a header; by default the first and last.
        skips, reports: see `tables.usable`; a sentence with a damaged line is left out as a whole.

    Raises:
        DataError: the file can't be read, has no sentence, or a line has no class; the message names the line.
    """
    if path.lower().endswith((".json", ".jsonl")):
        return _read_lists(path, word_column, tag_column, skips, reports)
    lines = _lines(read_text(path))
    layout, header = _layout(path, lines, word_column, tag_column)
    apart = [line for line in lines if line is header or _is_apart(line, layout)]
    if apart and reports:
        logger.info(f"{path}: {len(apart)} lines are no words and are left out; the first: {apart[0].text[:60]!r}")
    left_out = {line.number for line in apart}
    groups = itertools.groupby(
        (line for line in lines if line.number not in left_out), key=lambda line: line.is_boundary
    )
    sentences = [list(group) for is_boundary, group in groups if not is_boundary]
    found = usable(path, lambda group: _sentence(group, layout), sentences, skips, reports)
    return [sentence._replace(number=number) for number, sentence in enumerate(found)]


def _lines(text: str) -> list[_Line]:
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        cells = line.strip(" \r").split("\t") if "\t" in line.strip(SPACES) else line.strip(SPACES).split(" ")
        columns = [cell.strip(SPACES) for cell in cells]
        lines.append(_Line(number, line, columns if "\t" in line.strip(SPACES) else [cell for cell in columns if cell]))
    words = [line for line in lines if len(line.columns) > 1]
    if words and not any(line.columns[-1] for line in words):  # Each line ends with a tab.
        lines = [line._replace(columns=line.columns[:-1]) if len(line.columns) > 1 else line for line in lines]
    return lines


def _layout(path: str, lines: list[_Line], word: str | None, tag: str | None) -> tuple[_Layout, _Line | None]:
    """Returns the columns of a file, and its header if it has one."""
    words = [line for line in lines if not line.is_boundary]
    words = [line for line in words if not line.text.lstrip().startswith(_COMMENTS)] or words
    if not words:
        raise DataError(f"{path}: no examples in it")
    counts = collections.Counter(len(line.columns) for line in words)
    count = max(counts, key=lambda size: (counts[size], size))
    first = words[0]
    names = {name.lower(): number for number, name in enumerate(first.columns)}
    numbers = []
    for flag, value, default in (("text_column", word, 0), ("label_column", tag, count - 1)):
        number = default if value is None else int(value) if value.isdecimal() else names.get(value.lower(), count)
        if number >= count > 1:
            expected = f"expected a number from 0 to {count - 1}, or a name of the header"
            raise DataError(f"--{flag}={value}: {path}, line {first.number} has {first.columns}; {expected}")
        numbers.append(number)
    others = {line.columns[numbers[1]] for line in words[1:] if len(line.columns) == count > 1}
    title = first.columns[numbers[1]] if len(first.columns) == count > 1 else None
    are_tags = bool(others) and all(map(_TAG.fullmatch, others)) and not _TAG.fullmatch(title or "O")
    asked = {value.lower() for value in (word, tag) if value and not value.isdecimal()}
    named = bool(asked & names.keys()) or first.columns[0].lower() in _HEADER_NAMES
    header = first if title is not None and title not in others and len(words) > 1 and (named or are_tags) else None
    tags = frozenset(others if header else others | {title or ""})
    is_numbered = _are_numbered([line for line in lines if line is not header and (line in words or line.is_boundary)])
    if is_numbered and word is None:
        remedy = "name the columns of the word and of its class by their numbers from 0, such as --text_column=1"
        raise DataError(f"{path}, line {words[-1].number}: the first column numbers the words; {remedy}")
    return _Layout(path, count, *numbers, tags - {""}, (word, tag) != (None, None), is_numbered), header


def _are_numbered(lines: list[_Line]) -> bool:
    """Whether the first columns of each sentence are 1, 2, 3 and so on."""
    longest = 0
    for is_boundary, group in itertools.groupby(lines, key=lambda line: line.is_boundary):
        matches = [_NUMBERED.fullmatch(line.columns[0]) for line in group] if not is_boundary else []
        if not all(matches):
            return False
        numbers = [int(match[1]) for match in matches if not match[2]]
        if any(after != before + 1 for before, after in itertools.pairwise(numbers)):
            return False
        longest = max(longest, len(numbers))
    return longest > 1


def _is_apart(line: _Line, layout: _Layout) -> bool:
    """Whether a line is no word: a comment, or a range of words that follow."""
    if line.is_boundary:
        return False
    if line.text.lstrip().startswith(_COMMENTS):
        return not (len(line.columns) == layout.count > 1 and _is_tag(line.columns[layout.tag], layout))
    return layout.is_numbered and bool(_NUMBERED.fullmatch(line.columns[0])[2])


def _is_tag(text: str, layout: _Layout) -> bool:
    return text in layout.tags or bool(_TAG.fullmatch(text))


def _sentence(lines: Sequence[_Line], layout: _Layout) -> Sentence:
    words, tags = [], []
    for line in lines:
        where = f"{layout.path}, line {line.number}: {line.text.strip(SPACES)[:50]!r}"
        size = len(line.columns)
        if size < 2:
            raise DataError(f"{where}; expected a word and its class")
        tag = layout.tag if layout.is_chosen else -1
        if size != layout.count and (layout.is_chosen or not _is_tag(line.columns[tag], layout)):
            raise DataError(f"{where} has {size} columns; expected {layout.count}, as most lines have")
        if not (line.columns[layout.word] and line.columns[tag]):
            raise DataError(f"{where} has an empty column; expected a word and its class")
        words.append(line.columns[layout.word])
        tags.append(class_name(line.columns[tag], f"{where}: the class"))
    return Sentence(f"{layout.path}, line {lines[0].number}", 0, tuple(words), tuple(tags))


def _read_lists(path: str, word: str | None, tag: str | None, skips: bool, reports: bool) -> list[Sentence]:
    rows = read_table(path, skips=skips, reports=reports)
    columns = column_of(rows, word, _WORD_NAMES, "text_column"), column_of(rows, tag, _TAG_NAMES, "label_column")

    def sentence(row):
        words, tags = (row.values.get(column) for column in columns)
        is_sound = isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags) > 0
        if not is_sound or not all(isinstance(word, str) and word.strip(SPACES) for word in words):
            given = f"{columns[0]} is {shown(words)} and {columns[1]} {shown(tags)}"
            raise DataError(f"{row.place}: {given}; expected lists of words and of their classes")
        names = tuple(class_name(each, f"{row.place}: {columns[1]}") for each in tags)
        return Sentence(row.place, 0, tuple(words), names)

    found = usable(path, sentence, rows, skips, reports)
    return [each._replace(number=number) for number, each in enumerate(found)]


def words_of(text: str) -> list[str]:
    """Returns the words of a text, between spaces and tabs as in a file.

    If a script without spaces is not divided so, its characters and the punctuation marks are words.
    """
    if re.search(f"[{squad.SPACELESS}]{{2}}", text) and not re.search(
        f"[{squad.SPACELESS}] +[{squad.SPACELESS}]", text
    ):
        text = re.sub(f"[{squad.SPACELESS}{squad.PUNCTUATION_MARKS}]", r" \g<0> ", text)
    return [word for word in re.split(r"[ \t\r\n]+", text) if word]


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
