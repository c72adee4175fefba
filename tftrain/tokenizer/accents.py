"""Which letters lose a mark when accents are stripped, and whether a text can do without their marks.

BERT's uncased tokenizers decompose text (NFD) and delete its nonspacing marks, in every script. English has hardly any.
Elsewhere the marks are letters: Japanese `が` (ga) would become `か` (ka), Russian `й` would become `и`, and Hindi and
Thai would lose vowels. So it is in Latin script where marks are frequent, as in Turkish and Vietnamese.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable

import numpy as np
from tokenizers.normalizers import NFD

from tftrain.tokenizer.normalization import without_accents

# Share of the letters: where stripping changes more, `auto` keeps accents, and where it takes more, a warning says so.
FEW = 0.001
_SHOWN = 6
_VARIATION_SELECTORS = {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}  # They spell nothing.
_NO_LETTER = "\u25cc"

_nfd = NFD().normalize_str


def count_letters(texts: Iterable[str]) -> Counter:
    """Returns the count of each letter and each nonspacing mark of texts."""
    counts = np.bincount(np.frombuffer("".join(texts).encode("utf-32-le"), "<u4"))
    return only_letters(Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts).tolist()}))


def only_letters(characters: Counter) -> Counter:
    """Returns those of counted characters that are letters or nonspacing marks."""
    return Counter({each: count for each, count in characters.items() if each.isalpha() or _is_mark(each)})


def losses(letters: Counter) -> Counter:
    """Returns the letters that stripping takes a mark from, and the marks, with their counts."""
    return Counter({letter: count for letter, count in letters.items() if without_accents(letter) != _nfd(letter)})


def strips(letters: Counter) -> bool:
    """Whether accents of a text are stripped by default: it is in Latin script, and stripping changes few letters.

    A Hangul syllable loses no mark, but it changes: it is decomposed.
    """
    changed = sum(count for letter, count in letters.items() if without_accents(letter) != letter)
    latin = sum(count for letter, count in letters.items() if unicodedata.name(letter, "").startswith("LATIN"))
    return latin > letters.total() / 2 and changed <= FEW * letters.total()


def shown(lost: Counter) -> str:
    """Returns the most frequent ones of `losses` with what is left of each, for a terminal: "é→e ü→u"."""
    most = sorted(lost, key=lambda letter: (-lost[letter], letter))[:_SHOWN]
    return " ".join(
        _NO_LETTER + letter if _is_mark(letter) else f"{letter}→{without_accents(letter)}" for letter in most
    )


def _is_mark(character: str) -> bool:
    return not without_accents(character) and ord(character) not in _VARIATION_SELECTORS
