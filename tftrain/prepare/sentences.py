"""Splits paragraphs into sentences, in every script.

The marks that end a sentence are the characters with Unicode's property Sentence_Terminal. Three groups of them have
different rules:

- Marks of Latin, Greek, Cyrillic and others, such as the full stop, also stand in abbreviations and numbers. They end a
  sentence only before a space, and not before a lower-case letter or after a common abbreviation.
- All other marks, such as the ideographic full stop and the danda, end a sentence with or without a space.
- Thai and Lao have no mark: a space between two of their letters ends a sentence.

Lower-cased text has no capitals, so a sentence of more than 300 characters is split before lower-case letters too.

tensorflow-text's sentence breakers split after every full stop before a space or a letter, even in "e.g.", "Mr." and
"tf.data". The rules of this module do not split these.
"""

import re
from collections.abc import Iterable

_SPACED = r".!?\u2024\u203c\u203d\u2047-\u2049\u2e2e\u2e3c\u2e53\u2e54\u2e60\u2e61"
# Wide full stops. They end a sentence unless they stand between two digits.
_WIDE_STOPS = "\ufe52\uff0e"
_UNSPACED = _WIDE_STOPS + (
    r"\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367\u1368"
    r"\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f"
    r"\u1b7d-\u1b7f\u1c3b\u1c3c\u1c7e\u1c7f\u2cf9-\u2cfb\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf"
    r"\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16\ufe56\ufe57\uff01\uff1f\uff61"
    r"\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047\U00011048\U000110be-\U000110c1"
    r"\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c"
    r"\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642"
    r"\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42"
    r"\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44"
    r"\U00016d6e\U00016d6f\U00016e98\U0001bc9f\U0001da88"
)
_CLOSING = r"""["'\u201d\u2019\u00bb\u203a)\]}\u300d\u300f\u3011\u300b\u3009\u3015\uff02\uff07\uff09\uff3d\uff5d]*"""
# German closes with marks that open in other languages. They close a sentence only directly after a mark with a space.
_CLOSING_BEFORE_SPACE = _CLOSING.replace("[", "[\u00ab\u201c", 1)
# An opening mark may have a space after it, as the dash of a dialogue has.
_OPENING = r"""(?:["'\u201c\u2018\u201e\u201a\u00ab\u00bb\u2039\u203a(\[{\u00bf\u00a1\u2013\u2014-]\s?)*"""
_THAI_OR_LAO = r"\u0e00-\u0eff"
# These marks repeat or shorten the word before them. Spaces around them are within a sentence.
_REPETITION = r"\u0e2f\u0e46\u0eaf\u0ec6"
# A search that could begin inside a run of marks would read the run once for each mark.
_END = re.compile(
    rf"(?<![{_SPACED}])[{_SPACED}]+{_CLOSING_BEFORE_SPACE}\s+(?={_OPENING}(?P<next>[^\W_]))"
    rf"|[{_UNSPACED}][{_UNSPACED}{_SPACED}]*{_CLOSING}\s*(?=\S)"
)
# The same for text of ASCII characters, which is searched faster.
_ASCII_END = re.compile(r"""(?<![.!?])[.!?]+["')\]}]*\s+(?=(?:["'(\[{-]\s?)*(?P<next>[A-Za-z0-9]))""")
_THAI_OR_LAO_END = re.compile(rf"(?<=[{_THAI_OR_LAO}])(?<![{_REPETITION}])\s+(?=[{_THAI_OR_LAO}])(?![{_REPETITION}])")
_STOP_AND_SPACE = re.compile(rf"(?<![{_SPACED}])[{_SPACED}]+{_CLOSING_BEFORE_SPACE}\s+(?=\S)")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[])(?:[A-Za-z]|[A-Za-z]\.[A-Za-z]|etc|cf|vs|al|resp|approx|fig|eq|eqs|sec|ch|vol|pp|ed|"
    r"mr|mrs|ms|dr|prof|st|jr|sr|inc|ltd|co|corp|dept|gen|gov|col|capt|sgt|rev|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|"
    r"nov|dec)$",
    re.IGNORECASE,
)
_LONGEST_ABBREVIATION = 8
_LONG_SENTENCE = 300


def split_sentences(paragraph: str) -> list[str]:
    """Returns the sentences of a paragraph. Together they contain all of its words, in order."""
    sentences = _split(paragraph, _ends(paragraph))
    if len(paragraph) <= _LONG_SENTENCE:
        return sentences
    shorter = []
    for sentence in sentences:
        shorter += _split(sentence, _full_stops(sentence)) if len(sentence) > _LONG_SENTENCE else [sentence]
    return shorter


def _split(text: str, ends: Iterable[int]) -> list[str]:
    parts, begin = [], 0
    for end in ends:
        parts.append(text[begin:end].strip())
        begin = end
    rest = text[begin:].strip()
    return [*parts, rest] if rest else parts


def _ends(paragraph: str) -> list[int]:
    """Returns the positions after the sentences of a paragraph, without the last one."""
    if paragraph.isascii():
        return [match.end() for match in _ASCII_END.finditer(paragraph) if _ends_sentence(paragraph, match)]
    ends = [match.end() for match in _END.finditer(paragraph) if _ends_sentence(paragraph, match)]
    thai = [match.end() for match in _THAI_OR_LAO_END.finditer(paragraph)]
    return sorted({*ends, *thai}) if thai else ends


def _ends_sentence(paragraph: str, match: re.Match) -> bool:
    if match["next"]:
        return not match["next"].islower() and not _is_abbreviation(paragraph, match)
    if match[0] in _WIDE_STOPS:
        return not (paragraph[match.start() - 1 : match.start()].isdigit() and paragraph[match.end()].isdigit())
    return True


def _full_stops(sentence: str) -> list[int]:
    """Returns the positions after each full stop with a space that ends no abbreviation."""
    return [match.end() for match in _STOP_AND_SPACE.finditer(sentence) if not _is_abbreviation(sentence, match)]


def _is_abbreviation(text: str, match: re.Match) -> bool:
    if not match[0].startswith(".") or match[0].startswith(".."):
        return False
    stop = match.start()
    return bool(_ABBREVIATION.search(text, max(0, stop - _LONGEST_ABBREVIATION), stop))
