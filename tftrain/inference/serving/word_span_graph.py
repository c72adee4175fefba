"""The words of contexts with their places in the text, as a graph; `finetune.squad.word_spans` is its specification.

Whether a character belongs to a word depends on that character alone. So a code point has one of four kinds, which
`word_spans` itself says when the graph is made, with the Unicode of the Python that makes it.
"""

import functools
import sys
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.finetune.squad import word_spans
from tftrain.inference.serving.text_graph import ranges

# Two letters are of one word if nothing or only ignored characters are between them. Two characters that are alone are
# two words.
SPACE, LETTER, ALONE, IGNORED = range(4)
# A text that has another number of words for each kind of `{0}`.
_SAMPLE = "a{0}a {0}{0} {0}{0} "
_WORDS_OF_KIND = {SPACE: 2, LETTER: 3, ALONE: 7, IGNORED: 1}


class Words(NamedTuple):
    """Words of texts, one after another."""

    strings: tf.Tensor  # string [words]
    text: tf.Tensor  # index of the text of each word, int32 [words], ascending
    begins: tf.Tensor  # its first character in the text, int32 [words]
    ends: tf.Tensor  # the character after it, int32 [words]


class WordSpanGraph:
    """Divides texts into words, for a tokenizer type as in `finetune.squad.word_spans`."""

    def __init__(self, tokenizer_type: str):
        self._starts, self._kinds = _table(tokenizer_type)

    def __call__(self, texts: tf.RaggedTensor) -> Words:
        """Returns the words of texts that are code points, int32 [n, characters]."""
        flat, text = texts.flat_values, tf.cast(texts.value_rowids(), tf.int32)
        kind = tf.gather(self._kinds, tf.searchsorted(self._starts, flat, side="right") - 1)
        kept = tf.where(kind != IGNORED)[:, 0]
        kind, text = tf.gather(kind, kept), tf.gather(text, kept)
        # Whether a kept character is of the same word as the one before it.
        joined = (kind[1:] == LETTER) & (kind[:-1] == LETTER) & (text[1:] == text[:-1])
        edge = tf.zeros_like(kind[:1], tf.bool)
        first = tf.where((kind != SPACE) & ~tf.concat([edge, joined], 0))[:, 0]
        last = tf.where((kind != SPACE) & ~tf.concat([joined, edge], 0))[:, 0]
        begins, ends, of_word = tf.gather(kept, first), tf.gather(kept, last) + 1, tf.gather(text, first)
        row = tf.gather(texts.row_starts(), of_word)
        return Words(characters(flat, begins, ends), of_word, *(tf.cast(x - row, tf.int32) for x in (begins, ends)))


def characters(codes: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns parts of a sequence of code points as strings, [n], given their ends in it, int64 [n]."""
    places = tf.ragged.range(begins, ends)
    return tf.strings.unicode_encode(places.with_flat_values(tf.gather(codes, places.flat_values)), "UTF-8")


@functools.cache
def _table(tokenizer_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first code points of ranges, ascending, and the kind of each range."""
    samples = "".join(_SAMPLE.format(chr(code)) for code in range(sys.maxunicode + 1))
    places = [begin // len(_SAMPLE.format("c")) for begin, _ in word_spans(samples, tokenizer_type)]
    counts = np.bincount(places, minlength=sys.maxunicode + 1)
    kinds = np.full(len(counts), -1, np.int32)
    for kind, count in _WORDS_OF_KIND.items():
        kinds[counts == count] = kind
    return ranges(kinds)
