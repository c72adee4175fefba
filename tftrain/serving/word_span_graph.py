"""The words of contexts with their places in the text, as a graph; `labelled.squad.word_spans` is its specification.

Whether a character belongs to a word depends on that character alone. So a code point has one of three kinds, which
`word_spans` itself says when the graph is made, with the Unicode of the Python that makes it.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.labelled.squad import word_spans

# A letter and a letter beside it are of one word; two characters that are alone are two words.
SPACE, LETTER, ALONE = range(3)
# The planes behind it are of one kind.
_LAST = 0x3FFFF


class Words(NamedTuple):
    """Words of texts, one after another.

    Attributes:
        strings: the words, string [words].
        text: index of the text of each word, int32 [words], ascending.
        begins: its first character in the text, int32 [words].
        ends: the character behind it, int32 [words].
    """

    strings: tf.Tensor
    text: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor


class WordSpanGraph:
    """Divides texts into words."""

    def __init__(self, tokenizer_type: str):
        """Makes the table; `tokenizer_type` as in `labelled.squad.word_spans`."""
        self._starts, self._kinds = _table(tokenizer_type)

    def __call__(self, texts: tf.RaggedTensor) -> Words:
        """Returns the words of texts that are code points, int32 [n, characters]."""
        flat, text = texts.flat_values, tf.cast(texts.value_rowids(), tf.int32)
        kind = tf.gather(self._kinds, tf.searchsorted(self._starts, flat, side="right") - 1)
        # Whether a character is of the same word as the one in front of it.
        joined = (kind[1:] == LETTER) & (kind[:-1] == LETTER) & (text[1:] == text[:-1])
        edge = tf.zeros_like(kind[:1], tf.bool)
        begins = tf.where((kind != SPACE) & ~tf.concat([edge, joined], 0))[:, 0]
        ends = tf.where((kind != SPACE) & ~tf.concat([joined, edge], 0))[:, 0] + 1
        of_word = tf.gather(text, begins)
        first = tf.gather(texts.row_starts(), of_word)
        return Words(characters(flat, begins, ends), of_word, *(tf.cast(x - first, tf.int32) for x in (begins, ends)))


def characters(codes: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns parts of a sequence of code points as strings, [n], given their ends in it, int64 [n]."""
    places = tf.ragged.range(begins, ends)
    return tf.strings.unicode_encode(places.with_flat_values(tf.gather(codes, places.flat_values)), "UTF-8")


@functools.cache
def _table(tokenizer_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first code points of ranges, ascending, and the kind of each range."""
    doubled = "".join(f"{chr(code) * 2} " for code in range(_LAST + 1))
    places = [begin // len("cc ") for begin, _ in word_spans(doubled, tokenizer_type)]
    kinds = np.bincount(places, minlength=_LAST + 1).astype(np.int32)
    starts = np.flatnonzero(np.diff(kinds, prepend=-1)).astype(np.int32)
    return starts, kinds[starts]
