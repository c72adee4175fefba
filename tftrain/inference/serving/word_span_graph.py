"""The words of contexts with their places in the text, as a graph; `finetune.squad.word_spans` is its specification.

Whether a character belongs to a word depends on its kind alone. Two letters (KEEP) are of one word if nothing or only
deleted characters are between them.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.inference.serving.code_points import looked_up, substrings
from tftrain.inference.serving.text_graph import DELETE, KEEP, SPACE, tables


class Words(NamedTuple):
    """Words of texts, one after another."""

    strings: tf.Tensor  # string [words]
    text: tf.Tensor  # index of the text of each word, int32 [words], ascending
    begins: tf.Tensor  # its first character in the text, int32 [words]
    ends: tf.Tensor  # the character after it, int32 [words]


def words_of(texts: tf.RaggedTensor, tokenizer_type: str) -> Words:
    """Returns the words of texts that are code points, int32 [n, characters], for a type as in `squad.word_spans`.

    A byte-level BPE has the space before a word in its string, as `ExampleEncoder.words` has.
    """
    flat, text = texts.flat_values, tf.cast(texts.value_rowids(), tf.int32)
    if tokenizer_type in ("wordpiece", "bpe"):
        kinds, _ = tables(lower_case=False, strip_accents=False)
    else:
        kinds = looked_up(np.array([SPACE if chr(n).isspace() else KEEP for n in range(1 << 17)], np.int32))
    kind = kinds(flat)
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
    if tokenizer_type == "bpe":
        follows = tf.gather(flat, tf.maximum(begins - 1, 0)) == ord(" ")
        string_begins -= tf.cast(follows & (begins > row), tf.int64)
    strings = substrings(flat, string_begins, ends)
    return Words(strings, of_word, *(tf.cast(x - row, tf.int32) for x in (begins, ends)))
