"""Tables of code points that a graph looks up: ranges of one kind, and strings that replace single ones."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


class Kinds:
    """The kind of each code point, an int32, as ranges of one kind."""

    def __init__(self, kinds: np.ndarray):
        """Takes them by code point."""
        self._starts = np.flatnonzero(np.diff(kinds, prepend=-1)).astype(np.int32)
        self._kinds = kinds[self._starts]

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Maps code points, int32 [n], to their kinds, [n]."""
        return tf.gather(self._kinds, tf.searchsorted(self._starts, codes, side="right") - 1)


class Replacements:
    """The strings that replace some code points."""

    def __init__(self, strings: Mapping[int, str]):
        """Takes them by code point, ascending."""
        # Without a replacement the tables have a row of no code point.
        self._codes = np.array(list(strings) or [-1], np.int32)
        self._strings = np.array([string.encode() for string in strings.values()] or [b""], object)

    def __call__(self, codes: tf.Tensor, own: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns which code points, int32 [n], are replaced, and strings [n]: those, or what is their `own`."""
        index = tf.minimum(tf.searchsorted(self._codes, codes), len(self._codes) - 1)
        is_replaced = tf.gather(self._codes, index) == codes
        return is_replaced, tf.where(is_replaced, tf.gather(tf.constant(self._strings), index), own)


def characters(codes: tf.Tensor) -> tf.Tensor:
    """Maps code points, int32 [n], to strings of one character, [n]."""
    return tf.strings.unicode_encode(codes[:, tf.newaxis], "UTF-8")
