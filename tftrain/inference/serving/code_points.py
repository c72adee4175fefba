"""Tables of code points that a graph looks up: ranges of one kind, and strings that replace single ones."""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
Kinds = Callable[[tf.Tensor], tf.Tensor]  # maps code points, int32 [n], to their kinds, int32 [n]


def looked_up(kinds: np.ndarray) -> Kinds:
    """Returns a table of the kinds of all code points, int32 [0x110000], as ranges of one kind."""
    starts = np.flatnonzero(np.diff(kinds, prepend=-1)).astype(np.int32)
    kinds = kinds[starts]
    return lambda codes: tf.gather(kinds, tf.searchsorted(starts, codes, side="right") - 1)


def replaced(codes: tf.Tensor, own: tf.Tensor, strings: Mapping[int, str]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns which code points, int32 [n], are among those of `strings`, and strings [n]: those, or their `own`.

    The code points of `strings` ascend.
    """
    # Without a replacement the tables have a row of no code point.
    replaceable = np.array(list(strings) or [-1], np.int32)
    values = np.array([string.encode() for string in strings.values()] or [b""], object)
    index = tf.minimum(tf.searchsorted(replaceable, codes), len(replaceable) - 1)
    is_replaced = tf.gather(replaceable, index) == codes
    return is_replaced, tf.where(is_replaced, tf.gather(tf.constant(values), index), own)


def characters(codes: tf.Tensor) -> tf.Tensor:
    """Maps code points, int32 [n], to strings of one character, [n]."""
    return tf.strings.unicode_encode(codes[:, tf.newaxis], "UTF-8")


def substrings(codes: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns parts of a sequence of code points as strings, [n], given their ends in it, int64 [n]."""
    places = tf.ragged.range(begins, ends)
    return tf.strings.unicode_encode(places.with_flat_values(tf.gather(codes, places.flat_values)), "UTF-8")
