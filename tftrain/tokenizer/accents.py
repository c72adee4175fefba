"""Which letters lose a mark when accents are stripped, and whether a text can do without their marks.

BERT's uncased tokenizers decompose text (NFD) and delete its nonspacing marks, in every script. English has hardly any.
Elsewhere the marks are letters: Japanese `が` (ga) would become `か` (ka), Russian `й` would become `и`, and Hindi and
Thai would lose vowels. So it is in Latin script where marks are frequent, as in Turkish and Vietnamese.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable

import numpy as np

from tftrain.tokenizer.characters import NONSPACING_MARKS

# Share of the letters: where stripping changes more, `auto` keeps accents, and where it takes more, a warning says so.
FEW = 0.001
_SHOWN = 6
# They choose the form of a symbol, and spell nothing.
_VARIATION_SELECTORS = {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
_NO_LETTER = "\u25cc"


def count_letters(texts: Iterable[str]) -> Counter:
    """Returns the count of each letter and each nonspacing mark of texts."""
    counts = np.bincount(np.frombuffer("".join(texts).encode("utf-32-le"), "<u4"))
    return only_letters(Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts).tolist()}))


def only_letters(characters: Counter) -> Counter:
    """Returns those of counted characters that are letters or nonspacing marks."""
    marks = NONSPACING_MARKS - _VARIATION_SELECTORS
    return Counter({each: count for each, count in characters.items() if each.isalpha() or ord(each) in marks})


def losses(letters: Counter) -> Counter:
    """Returns the letters that stripping takes a mark from, and the marks, with their counts."""
    return Counter({letter: count for letter, count in letters.items() if _marks(letter)})


def strips(letters: Counter) -> bool:
    """Whether accents of a text are stripped by default: it is in Latin script, and stripping changes few letters.

    A Hangul syllable loses no mark, but it changes: it is decomposed.
    """
    changed = sum(count for letter, count in letters.items() if _marks(letter) or _nfd(letter) != letter)
    latin = sum(count for letter, count in letters.items() if unicodedata.name(letter, "").startswith("LATIN"))
    return latin > letters.total() / 2 and changed <= FEW * letters.total()


def shown(lost: Counter) -> str:
    """Returns the most frequent ones of `losses` with what is left of each, for a terminal: "é→e ü→u"."""
    most = sorted(lost, key=lambda letter: (-lost[letter], letter))[:_SHOWN]
    kept = ["".join(part for part in _nfd(letter) if ord(part) not in NONSPACING_MARKS) for letter in most]
    return " ".join(
        f"{letter}→{base}" if letter not in _marks(letter) else _NO_LETTER + letter
        for letter, base in zip(most, kept, strict=True)
    )


def _nfd(letter: str) -> str:
    return unicodedata.normalize("NFD", letter)


def _marks(letter: str) -> list[str]:
    return [part for part in _nfd(letter) if ord(part) in NONSPACING_MARKS]
