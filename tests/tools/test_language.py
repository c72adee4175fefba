"""Comments and docstrings follow the rules of language that a pattern can see."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_HEADLESS = re.compile(r"of\s", re.IGNORECASE)
_STANDS_FOR_A_NOUN = re.compile(r"\b(?:that|those) of\b", re.IGNORECASE)
_END_OF_SENTENCE = re.compile(r"(?<=[.:;])\s")
# What the source of a fault has; few files have it, and the others need no parser.
_MAY_BE_FAULT = re.compile(r"[#\"']\s*of\s|\b(?:that|those)[\s#]+of\b", re.IGNORECASE)


def prose(text):
    """Yields the line and the text of each docstring and comment; lines of comments below each other are one."""
    comments = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            (line, column), words = token.start, token.string.lstrip("# ")
            if comments and comments[-1][:2] == (line - 1, column) and not token.line[:column].strip():
                comments[-1] = (line, column, f"{comments[-1][2]} {words}")
            else:
                comments.append((line, column, words))
    yield from ((line, words) for line, _, words in comments)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (docstring := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), docstring


def faults(text):
    """Returns "line: rule" of each sentence that breaks one."""
    found = []
    for line, words in prose(text) if _MAY_BE_FAULT.search(text) else ():
        if _HEADLESS.match(words):
            found.append(f"{line}: begins with its subject, not with {words[:20]!r}")
        if any(len(_STANDS_FOR_A_NOUN.findall(sentence)) > 1 for sentence in _END_OF_SENTENCE.split(words)):
            found.append(f"{line}: repeats the noun in place of `that of` and `those of`")
    return found


@pytest.mark.parametrize("folder", ["tftrain", "tests", "tools"])
def test_prose_follows_the_rules(folder):
    assert [f"{p}:{f}" for p in sorted((ROOT / folder).rglob("*.py")) for f in faults(p.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("# Of the entry.\n", 1),
        ("x = 1  # of the entry\n", 1),
        ('"""Those of a and those of b."""\n', 1),
        ("# The end of it.\n", 0),
    ],
)
def test_each_rule_sees_its_fault(text, rules):
    assert len(faults(text)) == rules
