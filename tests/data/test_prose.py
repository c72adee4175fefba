"""Prose out of documentation, and the built-in corpus."""

import itertools

import pytest

from tftrain.data import builtin_corpus
from tftrain.data.prose import clean, is_prose, paragraphs


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
    assert builtin_corpus.extract(str(path)) == [
        f"The {what} has a text of enough words." for what in ("module", "class", "method", "function")
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.py", b'def broken(:\n """x"""'),
        ("a.py", b'"""\x00"""'),
        ("a.txt", b"\xff\xfe"),
        ("a.md", b""),
        ("gone.py", None),
    ],
)
def test_file_that_is_not_what_its_name_says_has_no_text(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert builtin_corpus.extract(str(tmp_path / name)) == []


def test_repeated_paragraphs_are_left_out_and_the_limit_is_kept():
    documents = [["One text.", "Two texts."], ["one  TEXT", "Three texts."], ["Two texts."], ["Four texts."]]
    assert list(builtin_corpus.deduplicate(documents, 1e9)) == [
        ["One text.", "Two texts."],
        ["Three texts."],
        ["Four texts."],
    ]
    endless = ([f"Text number {number} of them."] for number in itertools.count())
    total = sum(len(paragraph) + 1 for document in builtin_corpus.deduplicate(endless, 1000) for paragraph in document)
    assert 1000 <= total < 1030


def test_the_environment_gives_english_in_a_fixed_order():
    files = builtin_corpus.list_files()
    assert files == builtin_corpus.list_files()
    assert len(files) == len(set(files)) > 1000
    text = " ".join(itertools.chain.from_iterable(map(builtin_corpus.extract, files[:150]))).lower().split()
    # "the" is one of 20 words of English text or so.
    assert 0.02 < text.count("the") / len(text) < 0.12
