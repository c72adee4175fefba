"""Regular expressions of the package: none takes more than linear time, whatever the text."""

import ast
import collections
import importlib
import random
import re
import time
from itertools import combinations, islice, product
from pathlib import Path

import pytest

import tftrain
from tests.kit import corpora
from tftrain.prepare import builtin_corpus, sentences

try:
    from re import _parser
except ImportError:  # Python 3.10
    import sre_parse as _parser

CALLS = ("compile", "match", "search", "fullmatch", "sub", "split", "findall", "finditer")
ANCHORED = {"match", "fullmatch"}
SIZE = 4000
SECONDS = 0.0125  # Linear expressions take a hundredth of that, quadratic ones several times as long.
# Not from outside: the environment of a job, and the documentation inside a fixed list of installed packages.
OTHER_TEXTS = ("tftrain/parallel/slurm.py", "tftrain/prepare/prose.py")


def patterns():
    """Yields file, pattern and the functions that use it, of every call of `re` in the package."""
    root = Path(tftrain.__file__).parent
    for path in sorted(root.rglob("*.py")):
        text, file = path.read_text(), str(path.relative_to(root.parent))
        nodes = list(ast.walk(ast.parse(text))) if re.search(r"\bre\.", text) and file not in OTHER_TEXTS else []
        for node in nodes:
            function = node.func if isinstance(node, ast.Call) else None
            if not (isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "re"):
                continue
            if function.attr in CALLS[1:] and isinstance(node.args[0], ast.Constant):
                yield file, node.args[0].value, frozenset([function.attr])
            elif function.attr == "compile":
                for name, pattern in of_module(file):
                    yield file, pattern, frozenset(re.findall(rf"\b{name}\.(\w+)\(", text)) & {*CALLS}


def of_module(file):
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    waiting = list(vars(module).items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, re.Pattern):
            yield name, value.pattern
        elif isinstance(value, list | tuple) and len(value) < 100:
            waiting += [(name, part) for part in value]


def pieces(parsed):
    """Yields the characters that a pattern mentions, and the texts that stand in it as they are."""
    run = ""
    for op, value in parsed:
        kind = str(op)
        if kind in ("LITERAL", "NOT_LITERAL"):
            run += chr(value)
            yield chr(value)
            continue
        if run:
            yield run
        run = ""
        if kind == "RANGE":
            yield chr(value[0])
        elif kind == "CATEGORY":
            yield {"SPACE": " ", "DIGIT": "1", "WORD": "a"}.get(str(value).rpartition("_")[2], "-")
        elif kind == "IN":
            yield from islice(pieces(value), 6)
        elif isinstance(value, tuple | list):
            for part in value:
                for each in part if isinstance(part, list) else [part]:
                    if hasattr(each, "data"):
                        yield from pieces(each)
        elif hasattr(value, "data"):
            yield from pieces(value)
    if run:
        yield run


def texts(pattern):
    parsed = _parser.parse(pattern)
    kind = (lambda text: text.encode("latin-1")) if isinstance(pattern, bytes) else str
    parts = list(dict.fromkeys([*pieces(parsed), "a", "1", " ", "\n", "é"]))
    parts.sort(key=len, reverse=True)
    repeated = [(first + second) * (SIZE // len(first + second)) for first, second in combinations(parts[:14], 2)]
    repeated += [first + second * (SIZE // len(second)) for first, second in product(parts[:14], repeat=2)]
    for text in repeated:
        yield kind(text)
        yield kind(text + "~")


def seconds(pattern, uses, text):
    compiled, begin = re.compile(pattern), time.thread_time()
    if uses and uses <= ANCHORED:
        compiled.match(text), compiled.fullmatch(text)
    else:
        collections.deque(compiled.finditer(text), 0)
    return time.thread_time() - begin


FOUND = sorted(set(patterns()), key=repr)


def test_the_expressions_are_found():
    assert {file for file, *_ in FOUND} >= {"tftrain/prepare/sentences.py", "tftrain/formats/megatron.py"}
    assert len(FOUND) > 60


@pytest.mark.parametrize(
    ("file", "pattern", "uses"), FOUND, ids=[f"{file}-{place}" for place, (file, *_) in enumerate(FOUND)]
)
def test_time_grows_with_the_text_and_not_with_its_square(file, pattern, uses):
    for text in texts(pattern):
        if seconds(pattern, uses, text) > SECONDS:
            assert min(seconds(pattern, uses, text) for _ in range(3)) <= SECONDS, (pattern, text[:60])


def quadratic(pattern):
    return re.compile(pattern.replace(rf"(?<![{sentences._SPACED}])", "").replace("(?<![.!?])", ""))


def test_the_sentences_are_those_of_a_search_that_begins_anywhere(monkeypatch):
    draw = random.Random(1)
    marks = "..!?\"')]}(-  aZ1\u3002\u0964\uff0e\u2026\u00ab\u201c\u0e01\u2047"
    texts = ["".join(draw.choices(marks, k=draw.randrange(1, 60))) for _ in range(8000)]
    texts += [text * 40 for text in texts[:300]]
    documents = builtin_corpus.extract_all(builtin_corpus.list_files()[::40])
    texts += [paragraph for document in documents for paragraph in document]
    texts += corpora.text(50, seed=3).split("\n")
    assert len(texts) > 9000
    found = [sentences.split_sentences(text) for text in texts]
    for name in ("_END", "_ASCII_END", "_STOP_AND_SPACE"):
        monkeypatch.setattr(sentences, name, quadratic(getattr(sentences, name).pattern))
    assert [sentences.split_sentences(text) for text in texts] == found


@pytest.mark.parametrize("mark", [*".!?\u2047\u3002\"'", ". ", "?!", ".\u3002", ".)", "\u0e01 "])
def test_a_long_paragraph_of_marks_takes_no_time(mark):
    begin = time.thread_time()
    sentences.split_sentences(mark * (65_536 // len(mark)))
    sentences.split_sentences("a" + mark * (65_536 // len(mark)) + "b")
    assert time.thread_time() - begin < 2
