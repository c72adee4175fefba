"""A Precompiled normalizer as a graph: the map of sentencepiece's characters as the library `tokenizers` applies it.

The library looks up a grapheme of less than 6 bytes as a whole, and takes the shortest of its beginnings that is a key,
so that marks behind a replaced letter are lost; it looks up the characters of other graphemes by themselves. Only a
character with the marks that follow it, and a line break of two, are graphemes of so few bytes that differ from that.
"""

import base64
import unicodedata

import numpy as np
import tensorflow as tf
from tokenizers import normalizers

from tftrain.inference.serving.code_points import CODES, characters, looked_up, replaced
from tftrain.tokenizer import character_map

_LONGEST = 5  # bytes of a grapheme that is looked up as a whole
_MARK, _CONTROL = 1, 2  # kinds: what joins the character before it, and what no mark joins
_CATEGORIES = ("Cc", "Cf", "Zl", "Zp")  # those of the latter
# The units of a trie with the key "a" alone, whose string is empty, and that string.
_PROBE = {97: 97 | 1 << 8 | (97 ^ 256) << 10, 256: 1 << 31}
_RESERVED = ((0x2065, 0x2066), (0xFFF0, 0xFFF9), (0xE0000, 0xE1000))  # and what UAX #29 adds: ignorable code points


class CharacterMapGraph(tf.Module):
    """Replaces characters of texts."""

    def __init__(self, encoded: str):
        """Takes the map in base64; raises a ValueError if a key joins the letter after it, which has no ops."""
        super().__init__()
        content = base64.b64decode(encoded)
        entries = character_map.entries(content, _LONGEST)
        single = dict(sorted((ord(key), value) for key, value in entries.items() if len(key) == 1))
        between = chr(CODES[-1])  # No mark makes a grapheme of less than 6 bytes with it.
        joined = normalizers.Precompiled(content).normalize_str(between.join(f"{chr(code)}x" for code in single))
        if joined != between.join(f"{value}x" for value in single.values()):
            raise ValueError("a character of its Precompiled map joins the letter after it")
        self._single = single
        more = {key: value for key, value in entries.items() if len(key) > 1} or {"\0\0": ""}
        values = tf.lookup.KeyValueTensorInitializer(tf.constant(list(more)), tf.constant(list(more.values())))
        self._graphemes = tf.lookup.StaticHashTable(values, "\0")
        kinds, marks = np.zeros([0x110000], np.int32), _marks()
        kinds[[code for code in CODES if unicodedata.category(chr(code)) in _CATEGORIES]] = _CONTROL
        for begin, end in _RESERVED:
            kinds[begin:end] = _CONTROL
        kinds[marks] = _MARK
        self._kinds = looked_up(kinds)

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Maps strings [n] to strings [n]."""
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        flat, rows = codes.flat_values, codes.value_rowids()
        own, kind = characters(flat), self._kinds(flat)
        is_key, string = replaced(flat, own, self._single)
        joins = (kind[1:] == _MARK) & (kind[:-1] != _CONTROL)
        joins |= (flat[:-1] == ord("\r")) & (flat[1:] == ord("\n"))
        joins = tf.concat([tf.zeros_like(is_key[:1]), joins & (rows[1:] == rows[:-1])], 0)
        grapheme = tf.cumsum(tf.cast(~joins, tf.int32)) - 1
        sizes = tf.math.segment_sum(tf.strings.length(own), grapheme)
        is_whole = tf.gather(sizes <= _LONGEST, grapheme) & (
            joins | tf.concat([joins[1:], tf.zeros_like(joins[:1])], 0)
        )
        # Which string of the whole grapheme replaces it: of its first character, of the first two, of the first three.
        first = tf.where(~joins)[:, 0]
        whole = tf.where(tf.gather(is_key, first), tf.gather(string, first), "\0")
        beginning = tf.gather(own, first)
        for place in (1, 2):
            inside = tf.minimum(first + place, tf.size(flat, tf.int64) - 1)
            is_there = tf.gather(grapheme, inside) == tf.range(tf.size(first))
            beginning = tf.strings.join([beginning, tf.where(is_there, tf.gather(own, inside), "")])
            value = tf.where(is_there, self._graphemes.lookup(beginning), "\0")
            whole = tf.where(whole == "\0", value, whole)
        whole = tf.gather(whole, grapheme)
        string = tf.where(is_whole & (whole != "\0"), tf.where(joins, "", whole), string)
        return tf.strings.reduce_join(codes.with_flat_values(string), axis=1)


def _marks() -> list[int]:
    """Returns the code points that are one grapheme with a letter before them, as the library has them."""
    units = np.zeros(512, np.uint32)
    for place, unit in _PROBE.items():
        units[place] = unit
    normalizer = normalizers.Precompiled(len(units.tobytes()).to_bytes(4, "little") + units.tobytes() + b"\0")
    codes = [code for code in CODES if chr(code) not in "\0\r\na"]
    rest = normalizer.normalize_str("\n".join(f"a{chr(code)}" for code in codes))
    return [code for code, line in zip(codes, rest.split("\n"), strict=True) if not line]
