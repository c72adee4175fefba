"""BERT's words, and what its normalization does with each character, as the library `tokenizers` has them.

The library's tables are those of Unicode 8.0, whatever the Unicode of Python is. So a text gives the same tokens with
every Python, and those that most models with a BERT vocabulary are used with.
"""

import functools
import re
import unicodedata
from collections.abc import Callable

from tokenizers import normalizers, pre_tokenizers

LONGEST_WORD = 100  # A longer one is [UNK], as in the original BERT and in `tokenizers`.
# Thai, Lao, Tibetan, Myanmar, Khmer, New Tai Lue to Tai Tham, and kana. Their words are not separated by spaces.
_SPACELESS = re.compile(f"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1980-\u1aaf\u3041-\u30ff]{{{LONGEST_WORD + 1},}}")
_PLANES = (0, 1, 2, 14, 15, 16)  # those of Unicode with characters
_SEPARATOR = "\U0010ffff"  # No character becomes this one, and it stays between two characters.
_STRIP_ACCENTS = normalizers.BertNormalizer(
    clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
)


def bert_words(lower_case: bool, strip_accents: bool | None = None) -> Callable[[str], list[str]]:
    """Returns the function that splits a text into normalized words; `strip_accents` None means what `lower_case` is.

    Control and format characters are deleted. An ideograph and a punctuation mark are words of their own.
    """
    normalize = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=lower_case).normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    return lambda text: [word for word, _ in split(normalize(text))]


def translations(lower_case: bool, strip_accents: bool | None = None) -> dict[int, str]:
    """Returns what becomes of code points: "" if one is deleted, spaces around it if it is a word of its own.

    Those that are left out are surrogates, or in planes without characters, and stay as they are.
    """
    normalizer = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=lower_case)
    alone = {ord(mark): f" {mark} " for mark in punctuation()}
    translated = {}
    for plane in _PLANES:
        codes = [ord(character) for character in _characters(plane) if character != _SEPARATOR]
        text = normalizer.normalize_str(_SEPARATOR.join(map(chr, codes))).translate(alone)
        translated.update(zip(codes, text.split(_SEPARATOR), strict=True))
    return translated


@functools.cache
def punctuation() -> frozenset[str]:
    """Returns the characters that are punctuation marks: all ASCII signs, and the categories P* of Unicode 8.0."""
    text = "a".join(["", *_characters(0), *_characters(1), ""])
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)
    return frozenset(word for word, _ in words if len(word) == 1) - {"a"}


def without_accents(text: str) -> str:
    """Returns a text decomposed (NFD) and without nonspacing marks, as BERT strips accents."""
    return _STRIP_ACCENTS.normalize_str(text)


def _characters(plane: int) -> list[str]:
    begin = plane << 16
    return [chr(code) for code in range(begin, begin + (1 << 16)) if not 0xD800 <= code < 0xE000]


def cut_spaceless(text: str) -> str:
    """Inserts spaces into long runs of a script that writes no spaces between words.

    To BERT, a clause of such a script is one word, which is [UNK] if it has more than LONGEST_WORD characters. A run is
    cut into parts of at most LONGEST_WORD characters. No part begins with a mark.
    """
    return _SPACELESS.sub(_cut, text) if not text.isascii() else text


def _cut(run: re.Match) -> str:
    text, parts, begin = run[0], [], 0
    while len(text) - begin > LONGEST_WORD:
        end = begin + LONGEST_WORD
        while end > begin + 1 and unicodedata.category(text[end]).startswith("M"):
            end -= 1
        parts.append(text[begin:end])
        begin = end
    return " ".join([*parts, text[begin:]])
