"""Splits paragraphs into sentences.

tensorflow-text's sentence breakers split after every full stop before a space or a letter, even in "e.g.", "Mr." and
"tf.data". The rules of this module do not split these. Text without spaces between sentences (Chinese, Japanese) is
split after ideographic full stops.
"""

import re

_CLOSING = r"""["'\u201d\u2019)\]\u300d\u300f]*"""
_OPENING = r"""["'\u201c\u2018(\[]*"""
# Either a full stop, a space and a capital or a digit, or an ideographic full stop with or without a space.
_END = re.compile(rf"[.!?]{_CLOSING}\s+(?={_OPENING}[^\Wa-z_])|[\u3002\uff01\uff1f]{_CLOSING}\s*(?=\S)")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[])(?:[A-Za-z]|[A-Za-z]\.[A-Za-z]|etc|cf|vs|al|resp|approx|fig|eq|eqs|sec|ch|vol|pp|ed|"
    r"mr|mrs|ms|dr|prof|st|jr|sr|inc|ltd|co|corp|dept|gen|gov|col|capt|sgt|rev|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|"
    r"nov|dec)$",
    re.IGNORECASE,
)
_LONGEST_ABBREVIATION = 8


def split_sentences(paragraph: str) -> list[str]:
    """Returns the sentences of a paragraph. Together they contain all of its words, in order."""
    sentences, begin = [], 0
    for match in _END.finditer(paragraph):
        stop = match.start()
        if match[0].startswith(".") and _ABBREVIATION.search(paragraph, max(0, stop - _LONGEST_ABBREVIATION), stop):
            continue
        sentences.append(paragraph[begin : match.end()].strip())
        begin = match.end()
    rest = paragraph[begin:].strip()
    return [*sentences, rest] if rest else sentences
