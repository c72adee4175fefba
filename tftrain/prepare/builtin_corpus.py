"""The built-in corpus: English documentation inside installed Python packages, with nothing to download.

The packages are a fixed list for each TensorFlow. Its lock file pins one version of each for every Python that tftrain
supports. So the corpus is the same on every machine and does not depend on other installed packages.

The text has two sources: the docstrings of every module and the documentation files (.rst, .md, .txt). Docstrings come
from the module's syntax tree, so no module is imported. A hash of the file name orders the files, so a capped corpus is
a fair sample of the whole corpus. Duplicate paragraphs are removed.
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
from pathlib import Path

from tftrain.files.errors import DataError
from tftrain.prepare.prose import paragraphs

logger = logging.getLogger(__name__)

# Packages with much documentation. A lock file has the same version of each for every supported Python.
_NAMES = """
    absl-py click cmake fsspec grpcio h5py joblib packaging protobuf psutil pyparsing pytest requests rich setuptools
    tensorboard tensorflow tensorflow-text tf-keras urllib3 werkzeug
"""
# tf-models-official has no release for TensorFlow 2.21, whose lock file lacks what it brings.
_OF_TF_MODELS = """
    cython google-auth tensorflow-datasets tensorflow-model-optimization tf-models-official tf-slim
"""
_SKIPPED_FOLDERS = re.compile(r"__pycache__|tests?|testing|testdata|_?vendor|node_modules|licenses")
_SKIPPED_FILES = re.compile(
    r"licen[cs]e|copying|notice|authors|third.?party|requirements|entry_points|top_level|sources|_pb2|cmakelists",
    re.IGNORECASE,
)
_MAX_FILE = 4 << 20


def packages_for(tensorflow: str) -> list[str]:
    """Returns the names of the corpus's packages with a version of TensorFlow."""
    return sorted((_NAMES + _OF_TF_MODELS * tensorflow.startswith("2.20.")).split())


def list_files(packages: Iterable[str] | None = None) -> list[str]:
    """Returns the paths of the Python and documentation files of the packages, in corpus order, and logs the packages.

    By default, they are those of `packages_for` the TensorFlow that is installed. Raises a DataError if a package or
    one of its files is not installed. The message names all such packages.
    """
    versions, missing, paths = [], [], {}
    for package in packages_for(importlib.metadata.version("tensorflow")) if packages is None else packages:
        try:
            distribution = importlib.metadata.distribution(package)
            files = _package_files(distribution)
        except (importlib.metadata.PackageNotFoundError, FileNotFoundError):
            missing.append(package)
            continue
        versions.append(f"{package} {distribution.version}")
        paths.update(files)
    if missing:
        raise DataError(
            f"--builtin_corpus: {', '.join(missing)}: not completely installed; the corpus is made of all packages of "
            "its list; run `make setup`, which installs a lock file"
        )
    logger.info(f"built-in corpus: documentation of {', '.join(versions)}")
    return [paths[name] for name in sorted(paths, key=lambda name: (hashlib.sha256(name.encode()).digest(), name))]


def _package_files(distribution: importlib.metadata.Distribution) -> dict[str, str]:
    """Maps the names of a package's text files to paths; raises FileNotFoundError if one is missing, or all are."""
    paths = {}
    for file in distribution.files or ():
        folders = file.parts[:-1]
        if ".." in folders or any(map(_SKIPPED_FOLDERS.fullmatch, folders)):
            continue
        if file.parts[0].endswith((".dist-info", ".data")):
            continue
        if file.name.endswith((".py", ".rst", ".md", ".txt")) and not _SKIPPED_FILES.search(file.name):
            path = str(file.locate())
            if not os.path.isfile(path):
                raise FileNotFoundError(path)
            paths[file.as_posix()] = path
    if not paths:
        raise FileNotFoundError(distribution.metadata["Name"])
    return paths


def extract(path: str) -> list[str]:
    """Returns the English paragraphs of one file; none if it can't be read or parsed, or is larger than 4 MiB."""
    try:
        if os.path.getsize(path) > _MAX_FILE:
            return []
        content = Path(path).read_bytes()
        if not path.endswith(".py"):
            texts = [content.decode("utf-8")]
        elif b'"""' in content or b"'''" in content:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                texts = map(inspect.cleandoc, _docstrings(ast.parse(content)))
        else:
            return []
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [paragraph for text in texts for paragraph in paragraphs(text)]


def extract_all(paths: list[str]) -> list[list[str]]:
    """Returns the paragraphs of each file."""
    return [extract(path) for path in paths]


def deduplicate(documents: Iterable[list[str]], limit_bytes: float) -> Iterator[list[str]]:
    """Yields the documents without duplicate paragraphs, until their UTF-8 text reaches `limit_bytes`."""
    seen: set[bytes] = set()
    yielded_bytes = 0
    for document in documents:
        unique = []
        for paragraph in document:
            key = hashlib.blake2b(re.sub(r"\W+", " ", paragraph).strip().lower().encode(), digest_size=12).digest()
            if key not in seen:
                seen.add(key)
                unique.append(paragraph)
        yielded_bytes += sum(len(paragraph.encode()) + 1 for paragraph in unique)
        if unique:
            yield unique
        if yielded_bytes >= limit_bytes:
            return


def _docstrings(tree: ast.Module) -> Iterator[str]:
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node, clean=False):
                yield text
            stack.extend(reversed(node.body))
        elif isinstance(node, ast.If | ast.Try):
            stack.extend(reversed([*node.body, *node.orelse]))
