"""Where sentences end.

tensorflow-text's sentence breakers cut at every full stop before a space or a letter, "e.g.", "Mr." and "tf.data"
included; these few rules do not. Text without spaces between sentences (Chinese, Japanese) is cut at the full stops of
its own.
"""

import re

_CLOSING = r"""["'\u201d\u2019)\]\u300d\u300f]*"""
_OPENING = r"""["'\u201c\u2018(\[]*"""
# A full stop, a space and a capital or a digit; or an ideographic full stop, with or without a space.
_END = re.compile(rf"[.!?]{_CLOSING}\s+(?={_OPENING}[^\Wa-z_])|[\u3002\uff01\uff1f]{_CLOSING}\s*(?=\S)")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[])(?:[A-Za-z]|[A-Za-z]\.[A-Za-z]|etc|cf|vs|al|resp|approx|fig|eq|eqs|sec|ch|vol|pp|ed|"
    r"mr|mrs|ms|dr|prof|st|jr|sr|inc|ltd|co|corp|dept|gen|gov|col|capt|sgt|rev|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|"
    r"nov|dec)$",
    re.IGNORECASE,
)
_LONGEST_ABBREVIATION = 8


def split_sentences(paragraph: str) -> list[str]:
    """Returns the sentences of a paragraph; together they hold all of its words, in order."""
    found, begin = [], 0
    for match in _END.finditer(paragraph):
        stop = match.start()
        if match[0].startswith(".") and _ABBREVIATION.search(paragraph, max(0, stop - _LONGEST_ABBREVIATION), stop):
            continue
        found.append(paragraph[begin : match.end()].strip())
        begin = match.end()
    rest = paragraph[begin:].strip()
    return [*found, rest] if rest else found
