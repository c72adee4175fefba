"""Splits text into words, and counts them.

`word_splitter` is the one place that defines the words of a text. Both the tokenizer and the word counts that a
vocabulary is learned from use it. TensorFlow, which takes a process seconds to load, is loaded only for "nfkc".
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tftrain.families.bert import NORMALIZATION
from tftrain.tokenizer.normalization import bert_words
from tftrain.tokenizer.vocabulary import UNUSED_PREFIX, Vocabulary

T = TypeVar("T")
CHARACTERS_AT_ONCE = 1 << 20  # which limits the memory of the libraries

WordSplitter = Callable[[Sequence[str]], list[list[str]]]


def word_splitter(
    tokenizer_type: str, normalization: str, lower_case: bool, strip_accents: bool | None = None
) -> WordSplitter:
    """Returns the function that splits sentences into words.

    Args:
        tokenizer_type: "sentencepiece" splits at spaces only, because the trainer never learns a piece that crosses a
            space, and the sentencepiece model includes its own normalization.
        normalization: for "wordpiece", BERT's normalization, or "nfkc" for tensorflow-text's basic tokenizer. The lower
            case of "nfkc" is Unicode's NFKC case folding; without lower case it does not normalize.
        lower_case: whether words are lower-cased. With "nfkc" they then lose their accents too.
        strip_accents: whether words lose their accents with BERT's normalization; None: if they are lower-cased.
    """
    if tokenizer_type != "wordpiece":
        return lambda sentences: [sentence.split() for sentence in sentences]
    if normalization == NORMALIZATION:
        words = bert_words(lower_case, strip_accents)
        return lambda sentences: list(map(words, sentences))
    import tensorflow as tf
    from tensorflow_text.python.ops.bert_tokenizer import BasicTokenizer

    basic = BasicTokenizer(lower_case=lower_case)

    def split(sentences: Sequence[str]) -> list[list[str]]:
        words = basic.tokenize(tf.constant(sentences, tf.string)).to_list()
        return [[word.decode("utf-8") for word in sentence] for sentence in words]

    return split


def count_words(
    sentences: Sequence[str],
    tokenizer_type: str,
    lower_case: bool,
    normalization: str = NORMALIZATION,
    strip_accents: bool | None = None,
) -> Counter:
    """Counts the words of a text. `word_splitter` describes the arguments."""
    split, counts = word_splitter(tokenizer_type, normalization, lower_case, strip_accents), Counter()
    for part in by_size(sentences, CHARACTERS_AT_ONCE):
        counts.update(itertools.chain.from_iterable(split(part)))
    return counts


def strip_accents(counts: Counter) -> Counter:
    """Returns the counts that `count_words` gives with accents stripped, given those without; both as BERT's."""
    split, stripped = bert_words(lower_case=False, strip_accents=True), Counter()
    for word, count in counts.items():
        for part in [word] if word.isascii() else split(word):
            stripped[part] += count
    return stripped


def unreachable_words(
    vocabulary: Vocabulary, lower_case: bool, normalization: str, strip_accents: bool | None = None
) -> list[str]:
    """Returns the whole words of a WordPiece vocabulary that no text can give, as normalization changes or splits them.

    Special tokens, unused ones and pieces that begin with "##" are not among them.
    """
    pieces = ("##", UNUSED_PREFIX)
    special = {vocabulary.tokens[number] for number in vocabulary.roles.special}
    whole = [token for token in vocabulary.tokens if not token.startswith(pieces) and token not in special]
    split = word_splitter("wordpiece", normalization, lower_case, strip_accents)
    return [token for token, words in zip(whole, split(whole), strict=True) if words != [token]]


def by_size(items: Iterable[T], least: int, size_of: Callable[[T], int] = len) -> Iterator[list[T]]:
    """Yields texts, or other items, in lists of about this number of characters, or of another size."""
    part, size = [], 0
    for item in items:
        part.append(item)
        size += size_of(item)
        if size >= least:
            yield part
            part, size = [], 0
    if part:
        yield part
