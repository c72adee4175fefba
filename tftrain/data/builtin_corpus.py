"""The built-in corpus: English documentation inside the installed Python packages, with nothing to download.

Docstrings are taken from the syntax tree of every module, so nothing is imported; documentation files (.rst, .md, .txt)
as they are. The files are ordered by a hash of their name, so that a capped corpus is a fair sample of the whole one,
and a paragraph that occurred before is left out. The same packages give the same corpus.
"""

import ast
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from tftrain.data.prose import paragraphs

_SKIPPED_FOLDERS = {
    "__pycache__",
    "tests",
    "test",
    "testing",
    "testdata",
    "_vendor",
    "vendor",
    "node_modules",
    "site-packages",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "licenses",
}
_SKIPPED_FILES = re.compile(
    r"licen[cs]e|copying|notice|authors|third.?party|requirements|entry_points|top_level|sources|"
    r"_pb2|cmakelists",
    re.IGNORECASE,
)
_MAX_FILE = 4 << 20


def list_files() -> list[str]:
    """Returns the Python and documentation files of the environment in the corpus's order."""
    paths = sysconfig.get_paths()
    found = {}
    for label, root in (("lib", paths["stdlib"]), ("site", paths["purelib"]), ("site", paths["platlib"])):
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
            for name in files:
                if name.endswith((".py", ".rst", ".md", ".txt")) and not _SKIPPED_FILES.search(name):
                    path = os.path.join(folder, name)
                    found[f"{label}/{os.path.relpath(path, root)}"] = path
    return [found[name] for name in sorted(found, key=lambda name: (hashlib.sha256(name.encode()).digest(), name))]


def extract(path: str) -> list[str]:
    """Returns the English paragraphs of one file; none of a file that is not what its name says."""
    try:
        if os.path.getsize(path) > _MAX_FILE:
            return []
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return []
    if not path.endswith(".py"):
        try:
            return paragraphs(content.decode("utf-8"))
        except UnicodeDecodeError:
            return []
    if b'"""' not in content and b"'''" not in content:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [paragraph for text in _docstrings(tree) for paragraph in paragraphs(inspect.cleandoc(text))]


def extract_all(paths: list[str]) -> list[list[str]]:
    """Returns the paragraphs of each file."""
    return [extract(path) for path in paths]


def deduplicate(documents: Iterable[list[str]], limit_bytes: float) -> Iterator[list[str]]:
    """Yields the documents without the paragraphs that occurred before, until they have `limit_bytes` of UTF-8."""
    seen: set[bytes] = set()
    taken = 0
    for document in documents:
        kept = []
        for paragraph in document:
            key = hashlib.blake2b(re.sub(r"\W+", " ", paragraph).strip().lower().encode(), digest_size=12).digest()
            if key not in seen:
                seen.add(key)
                kept.append(paragraph)
        taken += sum(len(paragraph.encode()) + 1 for paragraph in kept)
        if kept:
            yield kept
        if taken >= limit_bytes:
            return


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yields the docstrings of a module, in the order of the source."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text
            waiting.extend(reversed(node.body))
        elif isinstance(node, ast.If | ast.Try):
            waiting.extend(reversed([*node.body, *node.orelse]))
