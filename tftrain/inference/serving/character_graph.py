"""BERT's normalization as a graph of ops that TensorFlow itself has; `input.normalization` is its specification.

Every rule but the canonical ordering of NFD looks at one code point. So a code point has one of five kinds, and ranges
of code points with one kind are a table of some thousand rows. Marks in another order than the canonical one keep it.
"""

import functools
import sys

import numpy as np
import tensorflow as tf

from tftrain.input.characters import DELETED, IDEOGRAPHS, NONSPACING_MARKS
from tftrain.input.normalization import BertNormalizer

KEEP, DELETE, SPACE, ISOLATE, REPLACE = range(5)
# Planes after this one have no letters that change; what is deleted there is in the tables.
_LAST_LETTER = 0x2FFFF


class CharacterGraph:
    """Normalizes texts, and splits them into words, as `BertNormalizer` with the same arguments."""

    def __init__(self, lower_case: bool, strip_accents: bool | None = None):
        self._starts, self._kinds, replaced = _tables(lower_case, strip_accents)
        # Without a replacement the tables have an unused row.
        self._codes = np.array(list(replaced) or [0], np.int32)
        self._strings = np.array([string.encode() for string in replaced.values()] or [b""], object)

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the normalized words of texts: string [n] to [n, words]."""
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        flat = codes.flat_values
        kind = tf.gather(self._kinds, tf.searchsorted(self._starts, flat, side="right") - 1)
        own = tf.strings.unicode_encode(flat[:, tf.newaxis], "UTF-8")
        place = tf.searchsorted(self._codes, flat)
        replacement = tf.gather(tf.constant(self._strings), tf.minimum(place, len(self._codes) - 1))
        string = tf.where(kind == REPLACE, replacement, own)
        string = tf.where(kind == ISOLATE, tf.strings.join([" ", own, " "]), string)
        string = tf.where(kind == SPACE, " ", string)
        string = tf.where(kind == DELETE, "", string)
        return tf.strings.split(tf.strings.reduce_join(codes.with_flat_values(string), axis=1))


@functools.cache
def _tables(lower_case: bool, strip_accents: bool | None) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Returns the first code points of ranges, ascending, the kind of each range, and what is replaced by what."""
    kinds, replaced = np.full(sys.maxunicode + 1, KEEP, np.int32), {}
    normalizer = BertNormalizer(lower_case, strip_accents)
    beyond = sorted(code for code in DELETED | NONSPACING_MARKS | IDEOGRAPHS if code > _LAST_LETTER)
    for code in [*range(_LAST_LETTER + 1), *beyond]:
        character, string = chr(code), normalizer.translation(code)
        kinds[code] = {character: KEEP, "": DELETE, " ": SPACE, f" {character} ": ISOLATE}.get(string, REPLACE)
        if kinds[code] == REPLACE:
            replaced[code] = string
    return *ranges(kinds), replaced


def ranges(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first code points of ranges of one kind, ascending, and their kinds, given those of code points."""
    starts = np.flatnonzero(np.diff(kinds, prepend=-1)).astype(np.int32)
    return starts, kinds[starts]
