"""BERT's normalization: from a text to the words that WordPiece cuts into pieces.

The rules are those of BERT's `BasicTokenizer`, character by character as the `tokenizers` package applies them:
    1. Control and format characters, private use, U+0000 and U+FFFD are deleted. Whitespace becomes a space.
    2. An ideograph is a word of its own.
    3. With `strip_accents`, the text is decomposed (NFD) and nonspacing marks are deleted. With `lower_case`, letters
       are lower-cased. A capital sigma becomes a medial sigma everywhere.
    4. Words end at spaces. A punctuation mark is a word of its own.

Every rule but the canonical ordering of NFD looks at one character. So a text is normalized by `str.translate`, whose
table is filled when a character occurs for the first time.
"""

import re
import unicodedata

from tftrain.tokenizer.characters import (
    COMBINING_CLASSES,
    DELETED,
    IDEOGRAPHS,
    LOWER_CASE_OFFSETS,
    NONSPACING_MARKS,
    PUNCTUATION,
    UNDECOMPOSED,
    WHITESPACE,
)

# As in the `tokenizers` package: a longer word is [UNK].
LONGEST_WORD = 100
# Thai, Lao, Tibetan, Myanmar, Khmer, New Tai Lue to Tai Tham, and kana. Their words are not separated by spaces.
_SPACELESS = re.compile(f"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1980-\u1aaf\u3041-\u30ff]{{{LONGEST_WORD + 1},}}")
# What canonical ordering may move, and the musical symbols that decompose to it.
_ORDERED = re.compile(f"[{''.join(map(chr, sorted(COMBINING_CLASSES)))}\U0001d15e-\U0001d164\U0001d1bb-\U0001d1c0]")


class BertNormalizer:
    """Splits texts into normalized words. As in `tokenizers`, `strip_accents` None means what `lower_case` is."""

    def __init__(self, lower_case: bool, strip_accents: bool | None = None):
        self._table = _Table(lower_case, lower_case if strip_accents is None else strip_accents)

    def translation(self, code: int) -> str:
        """Returns what becomes of a code point: "" if it is deleted, spaces around it if it is a word of its own."""
        return self._table[code] or ""

    def words(self, text: str) -> list[str]:
        """Returns the words of a text."""
        translated = text.translate(self._table)
        if self._table.needs_order and _ORDERED.search(text):
            translated = _canonical_order(text).translate(self._table)
        return translated.split()


def cut_spaceless(text: str) -> str:
    """Inserts spaces into long runs of a script that writes no spaces between words.

    To BERT, a clause of such a script is one word, which is [UNK] if it has more than LONGEST_WORD characters. A run is
    cut into parts of at most LONGEST_WORD characters. No part begins with a mark.
    """
    return _SPACELESS.sub(_cut, text) if not text.isascii() else text


class _Table(dict):
    """The translation of each code point that has occurred: deleted (None), or a string with spaces around words.

    Attributes:
        needs_order: whether a character has occurred that canonical ordering may move and that is not deleted. Nearly
            all texts have none.
    """

    def __init__(self, lower_case: bool, strip_accents: bool):
        super().__init__()
        self._lower_case, self._strip_accents, self.needs_order = lower_case, strip_accents, False

    def __missing__(self, code: int) -> str | None:
        self[code] = translated = self._translate(code)
        self.needs_order |= self._strip_accents and _ORDERED.match(chr(code)) is not None
        return translated

    def _translate(self, code: int) -> str | None:
        if code in DELETED:
            return None
        if code in WHITESPACE:
            return " "
        text = chr(code)
        if self._strip_accents:
            text = "".join(_decomposed(text))
        if self._lower_case:
            text = "".join(map(_lower, text))
        text = "".join(f" {part} " if ord(part) in PUNCTUATION else part for part in text)
        return f" {text} " if code in IDEOGRAPHS else text


def _decomposed(character: str) -> list[str]:
    if ord(character) in UNDECOMPOSED:
        return [character]
    return [part for part in unicodedata.normalize("NFD", character) if ord(part) not in NONSPACING_MARKS]


def _lower(character: str) -> str:
    offset = LOWER_CASE_OFFSETS.get(ord(character), 0)
    return chr(ord(character) + offset) if offset else character.lower()


def _canonical_order(text: str) -> str:
    """Decomposes a text and orders its combining characters by their class, as NFD requires (Unicode, section 3.11)."""
    ordered: list[str] = []
    run: list[str] = []
    for character in text:
        if ord(character) in DELETED:
            continue
        whole = ord(character) in IDEOGRAPHS or ord(character) in UNDECOMPOSED
        for part in character if whole else unicodedata.normalize("NFD", character):
            if _combining_class(part):
                run.append(part)
            else:
                ordered += [*sorted(run, key=_combining_class), part]
                run = []
    return "".join(ordered + sorted(run, key=_combining_class))


def _combining_class(character: str) -> int:
    if ord(character) in NONSPACING_MARKS:
        return unicodedata.combining(character)
    return COMBINING_CLASSES.get(ord(character), 0)


def _cut(run: re.Match) -> str:
    text, parts, begin = run[0], [], 0
    while len(text) - begin > LONGEST_WORD:
        end = begin + LONGEST_WORD
        while end > begin + 1 and unicodedata.category(text[end]).startswith("M"):
            end -= 1
        parts.append(text[begin:end])
        begin = end
    return " ".join([*parts, text[begin:]])
