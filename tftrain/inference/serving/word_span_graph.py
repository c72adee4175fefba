"""The words of contexts with their places in the text, as a graph; `finetune.squad.word_spans` is its specification.

Whether a character belongs to a word depends on its kind alone. Two letters (KEEP) are of one word if nothing or only
deleted characters are between them.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.inference.serving.code_points import Kinds
from tftrain.inference.serving.text_graph import DELETE, KEEP, SPACE, tables


class Words(NamedTuple):
    """Words of texts, one after another."""

    strings: tf.Tensor  # string [words]
    text: tf.Tensor  # index of the text of each word, int32 [words], ascending
    begins: tf.Tensor  # its first character in the text, int32 [words]
    ends: tf.Tensor  # the character after it, int32 [words]


class WordSpanGraph:
    """Divides texts into words, for a tokenizer type as in `finetune.squad.word_spans`.

    A byte-level BPE has the space before a word in its string, as `ExampleEncoder.words` has.
    """

    def __init__(self, tokenizer_type: str):
        self._with_spaces = tokenizer_type == "bpe"
        if tokenizer_type not in ("wordpiece", "bpe"):
            self._kinds = Kinds(np.array([SPACE if chr(n).isspace() else KEEP for n in range(1 << 17)], np.int32))
        else:
            self._kinds, _ = tables(lower_case=False, strip_accents=False)

    def __call__(self, texts: tf.RaggedTensor) -> Words:
        """Returns the words of texts that are code points, int32 [n, characters]."""
        flat, text = texts.flat_values, tf.cast(texts.value_rowids(), tf.int32)
        kind = self._kinds(flat)
        kept = tf.where(kind != DELETE)[:, 0]
        kind, text = tf.gather(kind, kept), tf.gather(text, kept)
        # Whether a kept character is of the same word as the one before it.
        joined = (kind[1:] == KEEP) & (kind[:-1] == KEEP) & (text[1:] == text[:-1])
        edge = tf.zeros_like(kind[:1], tf.bool)
        first = tf.where((kind != SPACE) & ~tf.concat([edge, joined], 0))[:, 0]
        last = tf.where((kind != SPACE) & ~tf.concat([joined, edge], 0))[:, 0]
        begins, ends, of_word = tf.gather(kept, first), tf.gather(kept, last) + 1, tf.gather(text, first)
        row = tf.gather(texts.row_starts(), of_word)
        string_begins = begins
        if self._with_spaces:
            follows = tf.gather(flat, tf.maximum(begins - 1, 0)) == ord(" ")
            string_begins -= tf.cast(follows & (begins > row), tf.int64)
        return Words(
            characters(flat, string_begins, ends), of_word, *(tf.cast(x - row, tf.int32) for x in (begins, ends))
        )


def characters(codes: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns parts of a sequence of code points as strings, [n], given their ends in it, int64 [n]."""
    places = tf.ragged.range(begins, ends)
    return tf.strings.unicode_encode(places.with_flat_values(tf.gather(codes, places.flat_values)), "UTF-8")
