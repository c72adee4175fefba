"""Prose out of documentation, and the built-in corpus."""

import itertools
import pathlib
import re
import sys

import pytest

from tftrain.files.errors import DataError
from tftrain.prepare import builtin_corpus
from tftrain.prepare.prose import clean, is_prose, paragraphs


def test_paragraphs_are_joined_and_code_is_left_out():
    text = """Return the sum of all elements that lie
    along an axis of the array.

    Parameters
    ----------
    axis : int
        The axis along which the elements are summed up.

    Examples
    --------
    >>> this is not prose but it has many words in it
    and its output has many words as well, too

    Some code that stands apart from the text follows here::

        for element in array this is code with many words

    The text goes on here after the code block ends.

    ```
    fenced code with a great many words that look like prose
    ```

    +--------+-------+
    | the table | has | words | too | and | more | of | them |
    +--------+-------+
    """
    assert paragraphs(text) == [
        "Return the sum of all elements that lie along an axis of the array.",
        "The axis along which the elements are summed up.",
        "Some code that stands apart from the text follows here:",
        "The text goes on here after the code block ends.",
    ]


def test_items_are_paragraphs_without_their_names():
    text = """Args:
      first: The first of the two numbers that are added,
        which may be negative.
      second (int): The other one of the two numbers.
    - A point of a list with enough words.
    :param x: The value that is handed to the function.
    """
    assert paragraphs(text) == [
        "The first of the two numbers that are added, which may be negative.",
        "The other one of the two numbers.",
        "A point of a list with enough words.",
        "The value that is handed to the function.",
    ]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("See :class:`~a.B` and ``code`` or `x`.", "See a.B and code or x."),
        ("A **bold** *word* and [a link](http://x.y/z).", "A bold word and a link."),
        ("Read `the guide <https://x.org>`_ first.", "Read the guide first."),
        ("At https://x.org/a?b=c there is more.", "At there is more."),
        ("a <b>tag</b> goes", "a tag goes"),
    ],
)
def test_markup_is_removed(text, cleaned):
    assert clean(text) == cleaned


@pytest.mark.parametrize(
    "text", ["Too few words.", "x = f(a, b) + g(c, d) - h[e] and so on it goes {1: 2}", "1 2 3 4 5 6 7 8"]
)
def test_code_and_fragments_are_no_prose(text):
    assert not is_prose(text)


def test_docstrings_come_in_the_order_of_the_source_and_nothing_is_imported(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('''"""The module has a text of enough words."""
raise SystemExit("this module must not be imported")
class A:
    """The class has a text of enough words."""
    def f(self):
        """The method has a text of enough words."""
def g():
    """The function has a text of enough words."""
    text = """This is a string of enough words, and no docstring."""
''')
    found = ("module", "class", "method", "function")
    assert builtin_corpus.extract(str(path)) == [f"The {what} has a text of enough words." for what in found]


BROKEN = b'def broken(:\n """x"""'


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.py", BROKEN), ("a.py", b'"\x00"'), ("a.txt", b"\xff\xfe"), ("a.md", b""), ("gone.py", None)],
)
def test_file_that_is_not_what_its_name_says_has_no_text(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert builtin_corpus.extract(str(tmp_path / name)) == []


def test_repeated_paragraphs_are_left_out_and_the_limit_is_kept():
    documents = [["One text.", "Two texts."], ["one  TEXT", "Three texts."], ["Two texts."], ["Four texts."]]
    kept = [["One text.", "Two texts."], ["Three texts."], ["Four texts."]]
    assert list(builtin_corpus.deduplicate(documents, 1e9)) == kept
    endless = ([f"Text number {number} of them."] for number in itertools.count())
    total = sum(len(paragraph) + 1 for document in builtin_corpus.deduplicate(endless, 1000) for paragraph in document)
    assert 1000 <= total < 1030


def test_the_packages_give_english_in_a_fixed_order():
    files = builtin_corpus.list_files()
    assert files == builtin_corpus.list_files()
    assert len(files) == len(set(files)) > 1000
    text = " ".join(itertools.chain.from_iterable(map(builtin_corpus.extract, files[:150]))).lower().split()
    # "the" is one of 20 words of English text or so.
    assert 0.02 < text.count("the") / len(text) < 0.12


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-gpu.lock", "requirements-tf2.21.lock"])
def test_the_lock_file_pins_one_version_of_each_package_for_every_python(lock):
    text = (pathlib.Path(__file__).parents[2] / lock).read_text()
    versions = re.findall(r"^([\w.-]+)==(\S+) ; (.*) \\$", text, re.MULTILINE)
    everywhere = "python_full_version < '3.14' and sys_platform == 'linux'"
    (tensorflow,) = [version for name, version, _ in versions if name == "tensorflow"]
    for package in builtin_corpus.packages_for(tensorflow):
        markers = [marker for name, _, marker in versions if name == package]
        assert markers == [everywhere], package


def _install(site: pathlib.Path, name: str, text: str) -> None:
    """Installs a package of one module, as pip leaves it."""
    (site / f"{name}.py").write_text(f'"""{text}"""')
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{name}-1.0.dist-info/METADATA,,\n{name}-1.0.dist-info/RECORD,,\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with two packages, the only one in which packages are looked for."""
    _install(tmp_path, "first", "The text of the first package has enough words.")
    _install(tmp_path, "second", "The text of the second package has enough words.")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_other_installed_packages_and_files_are_no_part_of_the_corpus(site, monkeypatch):
    (site / "stray.py").write_text('"""This file belongs to no package of the list."""')
    lines = []
    monkeypatch.setattr(builtin_corpus.logger, "info", lines.append)
    assert builtin_corpus.list_files(["first"]) == [str(site / "first.py")]
    assert lines == ["built-in corpus: documentation of first 1.0"]


def test_a_package_that_is_missing_or_damaged_is_an_error_that_names_it(site):
    (site / "second.py").unlink()
    with pytest.raises(DataError, match=r"^--builtin_corpus: second, third: not completely installed; .* `make setup`"):
        builtin_corpus.list_files(["first", "second", "third"])
