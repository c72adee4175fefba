"""What a tokenizer.json says as a graph of TensorFlow's ops: added tokens, normalizer, words, model.

The library `tokenizers` is the specification. A ValueError names what of a file has no ops: an expression with other
words than GPT-2's, and whatever else is not here.
"""

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tokenizers import Regex, Tokenizer, normalizers

from tftrain.inference.serving.character_map_graph import CharacterMapGraph
from tftrain.inference.serving.code_points import CODES, characters, looked_up
from tftrain.inference.serving.piece_graphs import MergeGraph, UnigramGraph
from tftrain.tokenizer.pipelines import NO_TEXT

# White space as Rust's char::is_whitespace has it, in an expression of RE2.
_SPACE = r"[\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
# A literal character and how often it occurs: what means the same to RE2 and to the library's Oniguruma.
_REPEATED = re.compile(r"[^\\\[\](){}.*+?|^$](\{\d+,\d*\}|\+)?")
_CONTRACTIONS = (("s",), ("t",), ("r", "e"), ("v", "e"), ("m",), ("l", "l"), ("d",))
Step = Callable[[tf.Tensor], tf.Tensor]


class PipelineGraph(tf.Module):
    """Turns texts into ids, with the tables of a tokenizer in the library's format."""

    modules: list[tf.Module]  # the graphs with tables, which a SavedModel tracks
    needs_tensorflow_text: bool = False  # whether there are ops of tensorflow-text

    def __init__(self, model: bytes, unspelled: Collection[str], mask: str | None):
        """Takes the special tokens that no text spells, and the one that a call with `with_mask` finds, if any.

        Raises a ValueError if something in `model` can't be done by TensorFlow's ops; the message says what.
        """
        super().__init__()
        # The library reads numbers with an error of their last bit, which decides between paths of one score.
        content = json.loads(Tokenizer.from_buffer(model).to_str())
        self.modules = []
        steps = self._normalizers(content.get("normalizer"))
        added = content.get("added_tokens") or []
        hidden = unspelled or {each["content"] for each in added if each["special"]}
        found = [each for each in added if each["content"] not in hidden]
        for each in found:
            if each["single_word"] or (each["normalized"] and steps):
                raise ValueError(f"its added token {each['content']!r} is a whole word, or of normalized text")
        masks = [each for each in added if each["content"] == mask]
        # Lists are no attributes: a SavedModel would look for variables in them.
        self._parts = functools.partial(_parts, found)
        self._parts_with_mask = functools.partial(_parts, [*found, *masks])
        self._of_first, self._of_bytes, splits = False, False, []
        self._add_words(content.get("pre_tokenizer"), splits, bool(steps))
        self._normalize, self._divide = _composed(steps), _composed(splits)
        own = content["model"]
        kind = own.get("type", "BPE")
        if kind not in ("Unigram", "BPE"):
            raise ValueError(f"its model is a {kind}")
        self._pieces = UnigramGraph(own, unspelled) if kind == "Unigram" else MergeGraph(own, self._of_bytes)

    def __call__(self, texts: tf.Tensor, with_mask: bool = False) -> tf.RaggedTensor:
        """Returns the token ids of texts without special tokens around them: string [n] to int32 [n, tokens]."""
        parts, number = (self._parts_with_mask if with_mask else self._parts)(texts)
        plain = self._normalize(tf.where(number >= 0, "", parts.flat_values))
        if self._of_first:
            is_first = tf.range(tf.size(number, tf.int64)) == tf.gather(parts.row_splits, parts.value_rowids())
            plain = tf.where(is_first, tf.strings.regex_replace(plain, "\\A([^ \u2581])", "\u2581\\1"), plain)
        words = tf.strings.split(self._divide(plain), NO_TEXT)
        words = tf.ragged.boolean_mask(words, words != "")
        different, index = tf.unique(words.flat_values)
        pieces = words.with_flat_values(tf.gather(self._pieces(different), index)).merge_dims(1, 2)
        own = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(number, number >= 0), tf.cast(number >= 0, tf.int64))
        return parts.with_flat_values(tf.concat([pieces, own], axis=1)).merge_dims(1, 2)

    def _normalizers(self, own: Mapping[str, Any] | None) -> list[Step]:
        kind = own["type"] if own else "Sequence"
        if kind == "Sequence":
            return [step for each in (own or {}).get("normalizers", ()) for step in self._normalizers(each)]
        if kind == "Precompiled":
            self.modules.append(CharacterMapGraph(own["precompiled_charsmap"]))
            return [self.modules[-1]]
        if kind in ("NFC", "NFD", "NFKC", "NFKD"):
            from tensorflow_text import normalize_utf8

            self.needs_tensorflow_text = True
            return [functools.partial(normalize_utf8, normalization_form=kind)]
        if kind == "Prepend":
            return [lambda texts: tf.where(texts == "", "", own["prepend"] + texts)]
        if kind == "Strip":
            sides = (rf"\A{_SPACE}+", rf"{_SPACE}+\z")
            chosen = [side for side, name in zip(sides, ("strip_left", "strip_right"), strict=True) if own[name]]
            return [lambda texts: tf.strings.regex_replace(texts, "|".join(chosen) or r"\z\z", "")]
        if kind == "Replace":
            pattern = own["pattern"]
            if "Regex" in pattern and not _REPEATED.fullmatch(pattern["Regex"]):
                raise ValueError(f"its normalizer replaces {pattern['Regex']!r}")
            expression = pattern.get("Regex") or _escaped(pattern["String"])
            return [lambda texts: tf.strings.regex_replace(texts, expression, _rewritten(own["content"]))]
        raise ValueError(f"its normalizer has {kind}")

    def _add_words(self, own: Mapping[str, Any] | None, splits: list[Step], is_normalized: bool) -> None:
        """Adds what divides texts into words to `splits`."""
        kind = own["type"] if own else "Sequence"
        if kind == "Sequence":
            for each in (own or {}).get("pretokenizers", ()):
                self._add_words(each, splits, is_normalized)
        elif kind == "WhitespaceSplit":
            splits.append(lambda texts: tf.strings.regex_replace(texts, f"{_SPACE}+", NO_TEXT))
        elif kind == "Metaspace":
            splits.append(self._metaspace(own, bool(splits) or is_normalized))
        elif kind == "ByteLevel" and own.get("use_regex", True):
            self._of_bytes = True
            if splits:
                raise ValueError("its pre-tokenizer has ByteLevel after another one")
            if own["add_prefix_space"]:
                splits.append(lambda texts: tf.strings.regex_replace(texts, r"\A([^ ])", r" \1"))
            splits.append(_byte_words())
        else:
            raise ValueError(f"its pre-tokenizer has {kind}, or other words than those of GPT-2")

    def _metaspace(self, own: Mapping[str, Any], is_later: bool) -> Step:
        """Returns what writes spaces as a character, which also begins texts, and divides texts before it."""
        space, scheme = own["replacement"], own.get("prepend_scheme", "always")
        if scheme == "first" and is_later:
            raise ValueError("its pre-tokenizer has Metaspace with prepend_scheme first after other steps")
        self._of_first = scheme == "first"

        def divide(texts: tf.Tensor) -> tf.Tensor:
            texts = tf.strings.regex_replace(texts, " ", space)
            begin = rf"(\A|{NO_TEXT})([^{_escaped(space)}{NO_TEXT[0]}])"
            if scheme == "always":
                texts = tf.strings.regex_replace(texts, begin, rf"\1{space}\2")
            if own.get("split", True):
                texts = tf.strings.regex_replace(texts, f"{_escaped(space)}", f"{NO_TEXT}{space}")
            return texts

        return divide


def _parts(added: Sequence[Mapping[str, Any]], texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Divides texts at added tokens, as tokenizer.json has them; the longest that begins in a place counts.

    Returns the parts of texts, string [n, parts], and the id of each, int32 [all parts]; -1 if it is text.
    """
    begin, added = NO_TEXT + NO_TEXT[0], sorted(added, key=lambda each: -len(each["content"]))
    if added:
        several = "|".join(_escaped(each["content"]) for each in added)
        texts = tf.strings.regex_replace(texts, f"({several})", f"{begin}\\1{NO_TEXT}")
    for each in added:
        token = begin + each["content"] + NO_TEXT
        before, after = (f"{_SPACE}*" if each[side] else "" for side in ("lstrip", "rstrip"))
        if before or after:
            texts = tf.strings.regex_replace(texts, before + _escaped(token) + after, _rewritten(token))
    parts = tf.strings.split(texts, NO_TEXT)
    parts = tf.ragged.boolean_mask(parts, parts != "")
    number = tf.fill(tf.shape(parts.flat_values), -1)
    for each in added:
        number = tf.where(parts.flat_values == NO_TEXT[0] + each["content"], each["id"], number)
    return parts, number


def _byte_words() -> Step:
    """Returns what puts borders between GPT-2's words; the library says of which kind each character is."""
    kinds, codes, last, space = np.zeros([0x110000], np.int32), CODES[:-1], chr(CODES[-1]), 3
    for kind, expression in enumerate((r"\p{L}", r"\p{N}", r"\s"), 1):
        rest = normalizers.Replace(Regex(expression), "").normalize_str(last.join(map(chr, codes)))
        kinds[[code for code, each in zip(codes, rest.split(last), strict=True) if not each]] = kind
    kind_of = looked_up(kinds)

    def divide(texts: tf.Tensor) -> tf.Tensor:
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        flat, rows = codes.flat_values, codes.value_rowids()
        kind = kind_of(flat)

        def shifted(x: tf.Tensor, by: int) -> tf.Tensor:
            """Returns what is `by` places later in the same text, 0 where nothing is; codes and kinds plus 1."""
            x = tf.pad(x + 1, [[8, 8]])[8 + by :][: tf.size(x)]
            same = tf.pad(rows, [[8, 8]], constant_values=-1)[8 + by :][: tf.size(rows)] == rows
            return tf.where(same, x, 0)

        before, after = shifted(kind, -1), shifted(kind, 1)
        follows_space = shifted(flat, -1) == 1 + ord(" ")
        starts = (before != kind + 1) & ~(follows_space & (kind != space))
        # The last of several spaces before a word is not with the others.
        starts |= (kind == space) & (before == 1 + space) & (after != 1 + space) & (after != 0)
        joined = ends = tf.zeros_like(starts)
        quote = starts & (flat == ord("'"))
        for letters in _CONTRACTIONS:
            is_one = quote
            for place, each in enumerate(letters, 1):
                is_one &= shifted(flat, place) == 1 + ord(each)
            joined |= tf.pad(is_one, [[1, 0]])[:-1]
            ends |= tf.pad(is_one, [[1 + len(letters), 0]])[: tf.size(flat)]
        starts = (starts & ~joined) | (ends & (before != 0))
        own = characters(flat)
        own = tf.where(starts, tf.strings.join([NO_TEXT, own]), own)
        return tf.strings.reduce_join(codes.with_flat_values(own), axis=1)

    return divide


def _composed(steps: Sequence[Step]) -> Step:
    return lambda texts: functools.reduce(lambda x, step: step(x), steps, texts)


def _escaped(text: str) -> str:
    """Returns an expression of RE2 for a text."""
    return "".join(f"\\x{{{ord(each):x}}}" for each in text)


def _rewritten(text: str) -> str:
    r"""Returns a text as what RE2 puts in place of a match, where \1 has a meaning."""
    return text.replace("\\", r"\\")
