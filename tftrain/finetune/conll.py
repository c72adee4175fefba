"""Words with classes in CoNLL's format: a word and its class a line, an empty line between sentences.

Files have more: comments, headers, numbers of the words, columns of other layers. Lines are examples only if their
columns fit the file's others; what is left out is counted.
"""

import collections
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tftrain.data.table_rows import Row
from tftrain.files.errors import DataError
from tftrain.files.strict_json import shown
from tftrain.finetune import squad
from tftrain.finetune.classes import class_name
from tftrain.finetune.encoding import Encoded, ExampleEncoder
from tftrain.finetune.tables import FileNotes, column_of, is_arrow, read_table, read_text, usable
from tftrain.tokenizer.normalization import punctuation

DOCUMENT_START = "-DOCSTART-"
SPACES = " \t\r"
_COMMENTS = ("#", "//")
_TAG, _PREFIXED = re.compile(r"[Oo_]|[BIESLUMW][-_].+"), re.compile("[BIESLUMW][-_]")
_BRACKETS = re.compile(r"\*|\*?\)|\([^()]+[*)]")  # as in CoNLL-2012
_NUMBERED = re.compile(r"\d+([-.]\d+)?")  # CoNLL-U numbers words, ranges of them (1-2) and words left unsaid (1.1)
_WORD_NAMES, _TAG_NAMES = ("tokens", "words"), ("ner_tags", "tags", "labels")
_HEADER_NAMES = ("token", "word", "form", "text", *_WORD_NAMES)


class Sentence(NamedTuple):
    """A sentence, or a part of it that fits a sequence."""

    place: str  # file and line of the first word, for messages
    number: int  # the sentence, from 0
    words: tuple[str, ...]
    tags: tuple[str, ...]  # the class of each word
    places: tuple[int, ...] = ()  # index of each word's first token in the sequence; empty before `divide`


class _Line(NamedTuple):
    number: int  # in the file, from 1
    text: str
    columns: list[str]  # none of an empty line
    is_boundary: bool  # whether a sentence ends before the line, which has no word


class _Layout(NamedTuple):
    path: str
    count: int  # columns
    word: int  # which column has it
    tag: int  # likewise
    tags: set[str]  # what is in the column of the class
    is_numbered: bool  # whether the first column numbers the words

    def is_tag(self, text: str) -> bool:
        return text in self.tags or bool(_TAG.fullmatch(text))


def read_sentences(
    path: str,
    word_column: str | None = None,
    tag_column: str | None = None,
    skips: bool = False,
    notes: FileNotes | None = None,
) -> list[Sentence]:
    """Reads the sentences of a file. Tabs separate the columns of a line that has one, else spaces do.

    Other white space, such as a no-break space, belongs to its word. A line that begins with # or // is a comment if
    its columns or its class are not those of the other lines. JSON, Parquet and Arrow have lists of words and classes.

    Args:
        word_column, tag_column: number of the column, from 0, or its name in a header; by default the first and last.
        skips, notes: see `tables.usable`; a sentence with a damaged line is left out as a whole.

    Raises:
        DataError: the file can't be read, has no sentence, or a line has no class; the message names the line.
    """
    if path.lower().endswith((".json", ".jsonl")) or is_arrow(path):
        return _numbered(_read_lists(path, word_column, tag_column, skips, notes))
    lines = _lines(read_text(path))
    layout, header = _layout(path, lines, word_column, tag_column)
    apart = {line.number: line.text for line in lines if line is header or _is_apart(line, layout)}
    if apart and notes is not None:
        notes.info(f"{path}: {len(apart)} lines are no words; the first: {next(iter(apart.values()))[:60]!r}")
    groups = itertools.groupby((line for line in lines if line.number not in apart), key=lambda line: line.is_boundary)
    sentences = [list(group) for is_boundary, group in groups if not is_boundary]
    return _numbered(usable(path, lambda group: _sentence(group, layout), sentences, skips, notes))


def _numbered(sentences: list[Sentence]) -> list[Sentence]:
    return [sentence._replace(number=number) for number, sentence in enumerate(sentences)]


def _lines(text: str) -> list[_Line]:
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if "\t" in line.strip(SPACES):
            cells = [cell.strip(SPACES) for cell in line.strip(" \r").split("\t")]
        else:
            cells = [cell for cell in line.strip(SPACES).split(" ") if cell]
        lines.append(_Line(number, line, cells, not cells or cells[0].startswith(DOCUMENT_START)))
    words = [line for line in lines if len(line.columns) > 1]
    if words and not any(line.columns[-1] for line in words):  # Each line ends with a tab.
        lines = [line._replace(columns=line.columns[:-1]) if len(line.columns) > 1 else line for line in lines]
    return lines


def _layout(path: str, lines: list[_Line], word: str | None, tag: str | None) -> tuple[_Layout, _Line | None]:
    every = [line for line in lines if not line.is_boundary]
    words = [line for line in every if not line.text.lstrip().startswith(_COMMENTS)]
    words = words or [line for line in every if _TAG.fullmatch(line.columns[-1])]
    if not words:
        raise DataError(f"{path}: no examples in it")
    counts = collections.Counter(len(line.columns) for line in words)
    count = max(counts, key=lambda size: (counts[size], size))
    first, names, columns = words[0], [name.lower() for name in words[0].columns], []
    for flag, value, default in (("text_column", word, 0), ("label_column", tag, count - 1)):
        if value is None or value.isdecimal():
            columns.append(int(value or default))
        else:
            columns.append(names.index(value.lower()) if value.lower() in names else count)
        if columns[-1] >= count:
            expected = f"expected a number from 0 to {count - 1}, or a name of the header"
            raise DataError(f"--{flag}={value}: {path}, line {first.number} has {first.columns}; {expected}")
    tags = {line.columns[columns[1]] for line in words[1:] if len(line.columns) == count}
    title = first.columns[columns[1]] if len(first.columns) == count > 1 else "O"
    named = names[0] in _HEADER_NAMES or any(value and not value.isdecimal() for value in (word, tag))
    are_tags = all(map(_TAG.fullmatch, tags)) and any(map(_PREFIXED.match, tags))
    header = first if tags and title not in tags and not _TAG.fullmatch(title) and (named or are_tags) else None
    if tags and all(map(_BRACKETS.fullmatch, tags)):
        raise DataError(f"{path}, line {words[-1].number}: the classes are brackets; expected tags, such as B-PER")
    tags |= {title} - ({title} if header else {""})
    examples = {line.number for line in words if line is not header}
    is_numbered = _are_numbered([line for line in lines if line.is_boundary or line.number in examples])
    if is_numbered and word is None:
        remedy = "name the columns of the word and of its class by their numbers from 0, such as --text_column=1"
        raise DataError(f"{path}, line {words[-1].number}: the first column numbers the words; {remedy}")
    return _Layout(path, count, *columns, tags - {""}, is_numbered), header


def _are_numbered(lines: list[_Line]) -> bool:
    """Whether the first columns of each sentence are 1, 2, 3 and so on, or continue those of the sentence before."""
    groups = itertools.groupby(lines, key=lambda line: line.is_boundary)
    columns = [[line.columns[0] for line in group] for is_boundary, group in groups if not is_boundary]
    numbers = [own for cells in columns if (own := [int(cell) for cell in cells if cell.isdecimal()])]
    follow = all(own == [*range(own[0], own[0] + len(own))] for own in numbers)
    follow &= all(own[0] in (0, 1, 1 + before[-1]) for before, own in itertools.pairwise([[0], *numbers]))
    is_long = any(len(own) > 1 for own in numbers)
    return follow and is_long and all(map(_NUMBERED.fullmatch, itertools.chain(*columns)))


def _is_apart(line: _Line, layout: _Layout) -> bool:
    """Whether a line is no word: a comment, or a range of words that follow."""
    if line.is_boundary:
        return False
    if line.text.lstrip().startswith(_COMMENTS):
        return not (len(line.columns) == layout.count > 1 and layout.is_tag(line.columns[layout.tag]))
    return layout.is_numbered and not line.columns[0].isdecimal()


def _sentence(lines: Sequence[_Line], layout: _Layout) -> Sentence:
    words, tags, is_default = [], [], (layout.word, layout.tag) == (0, layout.count - 1)
    for line in lines:
        size, fault = len(line.columns), None
        if size < 2:
            fault = "; expected a word and its class"
        elif size > layout.count or (size < layout.count and not (is_default and layout.is_tag(line.columns[-1]))):
            fault = f" has {size} columns; expected {layout.count}, as most lines have"
        elif not (line.columns[layout.word] and line.columns[layout.tag if size == layout.count else -1]):
            fault = " has an empty column; expected a word and its class"
        if fault:
            raise DataError(f"{layout.path}, line {line.number}: {line.text.strip(SPACES)[:50]!r}{fault}")
        words.append(line.columns[layout.word])
        tags.append(class_name(line.columns[layout.tag if size == layout.count else -1], layout.path))
    return Sentence(f"{layout.path}, line {lines[0].number}", 0, tuple(words), tuple(tags))


def _read_lists(path: str, word: str | None, tag: str | None, skips: bool, notes: FileNotes | None) -> list[Sentence]:
    rows = read_table(path, skips=skips, notes=notes)
    columns = column_of(rows, word, _WORD_NAMES, "text_column"), column_of(rows, tag, _TAG_NAMES, "label_column")

    def sentence(row: Row) -> Sentence:
        words, tags = (row.values.get(column) for column in columns)
        are_lists = isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags) > 0
        if not are_lists or not all(isinstance(each, str) and each.strip(SPACES) for each in words):
            given = f"{columns[0]} is {shown(words)} and {columns[1]} {shown(tags)}"
            raise DataError(f"{row.place}: {given}; expected lists of words and of their classes")
        names = (class_name(each, f"{row.place}: {columns[1]}") for each in tags)
        return Sentence(row.place, 0, tuple(words), tuple(names))

    return usable(path, sentence, rows, skips, notes)


def words_of(text: str) -> list[str]:
    """Returns the words of a text, between spaces and tabs as in a file.

    If a script without spaces is not divided so, its characters and the punctuation marks are words.
    """
    if re.search(f"[{squad.SPACELESS}]{{2}}", text) and not re.search(
        f"[{squad.SPACELESS}] +[{squad.SPACELESS}]", text
    ):
        alone = f"[{squad.SPACELESS}{re.escape(''.join(sorted(punctuation())))}]"
        text = re.sub(alone, r" \g<0> ", text)
    return [word for word in re.split(r"[ \t\r\n]+", text) if word]


def divide(
    sentences: Sequence[Sentence], encoder: ExampleEncoder, unknown_id: int
) -> tuple[list[Sentence], list[Encoded]]:
    """Returns the parts of sentences with the places of their words, and their token ids.

    A long sentence is divided between words. A word that the tokenizer has nothing for, such as a control character, is
    the token `unknown_id`.
    """
    words = [(word, place > 0) for sentence in sentences for place, word in enumerate(sentence.words)]
    pieces = iter(encoder.words(*zip(*words, strict=True)) if words else ())
    most, parts, encoded = encoder.max_seq_length - 2, [], []
    for sentence in sentences:
        rows, end = [[]], 0
        for own in itertools.islice(pieces, len(sentence.words)):
            own = (own if len(own) else np.array([unknown_id], np.int32))[:most]
            if sum(map(len, rows[-1])) + len(own) > most:
                rows.append([])
            rows[-1].append(own)
        for row in rows:
            own, end = slice(end, end + len(row)), end + len(row)
            places = itertools.accumulate(map(len, row[:-1]), initial=1)
            parts.append(sentence._replace(words=sentence.words[own], tags=sentence.tags[own], places=tuple(places)))
            encoded.append(encoder.join([np.concatenate(row)]))
    return parts, encoded
