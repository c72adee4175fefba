"""Extracts English paragraphs from docstrings, .rst and .md text, without markup and code."""

import re

_FENCE = re.compile(r"^\s*(```|~~~)")
_ITEM = re.compile(r"^(?:[-*+•]|\d{1,2}[.)]|\(\d{1,2}\)|:(?:param|type|return|returns|raises|rtype|arg)\b[^:]*:)\s+")
_FIELD = re.compile(r"^[`*]*[A-Za-z_][\w.]*[`*]*(?:,\s*[`*]*\w+[`*]*)*(?:\s*\([^)]{0,80}\))?:\s+(?=\S)")
_DECLARATION = re.compile(r"^[`*\w.,\s]{1,60}\s:\s*\S")
_DIRECTIVE = re.compile(r"^\s*(\.\. |:\w+:\s*$|@\w+)")
_RULE = re.compile(r"^\s*([=\-~^\"'#*+.|:]\s?){3,}\s*$")
_TABLE = re.compile(r"^\s*[|+].*[|+]\s*$|\S\s{3,}\S.*\s{3,}\S")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|`([^`<]+?)\s*<[^>]*>`_{0,2}")
_ROLE = re.compile(r":[\w:+-]+:`~?([^`]*)`")
_URL = re.compile(r"<?\b(?:https?|ftp)://\S+>?")
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_MARKUP = re.compile(r"`+|\*\*|__(?=\w)|(?<=\w)__|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|\\(?=\W)")
_WORDS = re.compile(r"[A-Za-z][a-z']*[.,;:!?)]?(?=\s|$)")

_MIN_WORDS = 6
_MIN_PROSE = 0.75


def paragraphs(text: str) -> list[str]:
    """Returns the paragraphs of English prose in a documentation text, each on one line.

    Doctests, fenced and indented code, tables, headings and field declarations are removed. So is every paragraph that
    has too few words for its length.
    """
    prose, lines = [], []
    fenced, literal, code = False, None, False

    def flush():
        joined = clean(" ".join(lines))
        lines.clear()
        if is_prose(joined):
            prose.append(joined)

    previous_indent = 0
    for line in text.expandtabs(4).splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if _FENCE.match(line):
            fenced = not fenced
            flush()
            continue
        if not stripped:
            code = False
            flush()
            continue
        if literal is not None and indent <= literal:
            literal = None
        code = code or stripped.startswith((">>>", "$ ", "In ["))
        if fenced or code or literal is not None:
            continue
        if _DIRECTIVE.match(line) or _RULE.match(line) or _TABLE.search(line):
            flush()
            if stripped.startswith("..") and stripped.endswith("::"):
                literal = indent
            continue
        item = _ITEM.match(stripped) or _FIELD.match(stripped)
        if _DECLARATION.match(stripped) and not item:
            flush()
            continue
        if item or indent < previous_indent:
            flush()
        previous_indent = indent
        lines.append(stripped[item.end() :] if item else stripped)
        if stripped.endswith("::"):
            lines[-1] = lines[-1][:-1]
            flush()
            literal = indent
    flush()
    return prose


def clean(text: str) -> str:
    """Removes inline markup and URLs from a paragraph."""
    text = _LINK.sub(lambda match: match[1] or match[2] or "", text)
    text = _ROLE.sub(r"\1", text)
    text = _MARKUP.sub("", _TAG.sub("", _URL.sub("", text)))
    return " ".join(text.split())


def is_prose(text: str) -> bool:
    """Returns whether a paragraph has at least 6 words and words make up at least 75% of its characters."""
    words = _WORDS.findall(text)
    return len(words) >= _MIN_WORDS and sum(map(len, words)) + len(words) >= _MIN_PROSE * len(text)
