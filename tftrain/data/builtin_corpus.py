"""The built-in corpus: English documentation inside installed Python packages, with nothing to download.

The packages are a fixed list. `requirements.lock` pins one version of each for every Python that tftrain supports, so
the corpus is the same on every machine and does not depend on what else is installed.

Docstrings are taken from the syntax tree of every module, so nothing is imported; documentation files (.rst, .md, .txt)
as they are. The files are ordered by a hash of their name, so that a capped corpus is a fair sample of the whole one,
and a paragraph that occurred before is left out.
"""

import ast
import hashlib
import importlib.metadata
import inspect
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator

from tftrain.data.errors import DataError
from tftrain.data.prose import paragraphs

logger = logging.getLogger(__name__)

# Packages with much documentation, of which requirements.lock has one version for all versions of Python.
PACKAGES = (
    "absl-py",
    "click",
    "cmake",
    "cython",
    "fsspec",
    "google-auth",
    "grpcio",
    "h5py",
    "joblib",
    "packaging",
    "protobuf",
    "psutil",
    "pyparsing",
    "pytest",
    "requests",
    "rich",
    "setuptools",
    "tensorboard",
    "tensorflow",
    "tensorflow-datasets",
    "tensorflow-model-optimization",
    "tensorflow-text",
    "tf-keras",
    "tf-models-official",
    "tf-slim",
    "urllib3",
    "werkzeug",
)
_SKIPPED_FOLDERS = {
    "__pycache__",
    "tests",
    "test",
    "testing",
    "testdata",
    "_vendor",
    "vendor",
    "node_modules",
    "licenses",
}
_SKIPPED_FILES = re.compile(
    r"licen[cs]e|copying|notice|authors|third.?party|requirements|entry_points|top_level|sources|"
    r"_pb2|cmakelists",
    re.IGNORECASE,
)
_MAX_FILE = 4 << 20


def list_files(packages: Iterable[str] = PACKAGES) -> list[str]:
    """Returns the Python and documentation files of the packages in the corpus's order, and logs the packages.

    Raises:
        DataError: a package, or a file of it, is not installed; the message names all such packages.
    """
    versions, missing, found = [], [], {}
    for package in packages:
        try:
            distribution = importlib.metadata.distribution(package)
            files = _package_files(distribution)
        except (importlib.metadata.PackageNotFoundError, FileNotFoundError):
            missing.append(package)
            continue
        versions.append(f"{package} {distribution.version}")
        found.update(files)
    if missing:
        raise DataError(
            f"--builtin_corpus: {', '.join(missing)}: not completely installed; the corpus is made of all packages of "
            "its list; run `make setup`, which installs requirements.lock"
        )
    logger.info(f"built-in corpus: documentation of {', '.join(versions)}")
    return [found[name] for name in sorted(found, key=lambda name: (hashlib.sha256(name.encode()).digest(), name))]


def _package_files(distribution: importlib.metadata.Distribution) -> dict[str, str]:
    """Returns the path of each file that may hold text, by its name in the package's record of installed files.

    Raises:
        FileNotFoundError: there is no such record, or a file of it is missing.
    """
    found = {}
    for file in distribution.files or ():
        folders = set(file.parts[:-1])
        if ".." in folders or folders & _SKIPPED_FOLDERS or file.parts[0].endswith((".dist-info", ".data")):
            continue
        if file.name.endswith((".py", ".rst", ".md", ".txt")) and not _SKIPPED_FILES.search(file.name):
            path = str(file.locate())
            if not os.path.isfile(path):
                raise FileNotFoundError(path)
            found[file.as_posix()] = path
    if not found:
        raise FileNotFoundError(distribution.metadata["Name"])
    return found


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
