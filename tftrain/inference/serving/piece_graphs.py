"""Words to ids of tokens as graphs: Unigram's best path and BPE's merges, as the library `tokenizers` computes them."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tftrain.tokenizer.vocabulary import byte_characters

_NONE = -1
_PENALTY = 10.0  # an unknown character costs this below the smallest score of a token
_LOWEST = np.finfo(np.float64).min
_FAR = np.iinfo(np.int64).max


def table(tokens: Mapping[str, int]) -> tf.lookup.StaticHashTable:
    """Returns the ids of tokens; -1 for all other strings."""
    keys, values = tf.constant(list(tokens), tf.string), tf.constant(list(tokens.values()), tf.int32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), _NONE)


def of_each_byte(strings: tf.Tensor, values: Any) -> tf.RaggedTensor:
    """Returns the one of 256 values for each byte of strings, [n, bytes]."""
    split = tf.strings.bytes_split(strings)
    number = tf.reshape(tf.io.decode_raw(split.flat_values, tf.uint8), [-1])
    return split.with_flat_values(tf.gather(values, tf.cast(number, tf.int32)))


class ByteIds:
    """Ids of the tokens <0x00> to <0xFF> of a model that has them for characters without a token, if it has."""

    def __init__(self, tokens: Mapping[str, int], is_on: bool, unknown: int):
        """Raises a ValueError if a byte has no token."""
        ids = [tokens.get(f"<0x{byte:02X}>") for byte in range(256)] if is_on else []
        if None in ids:
            raise ValueError("its model has byte_fallback and not a token for each byte")
        self._ids, self._unknown = np.array(ids, np.int32), unknown

    def __call__(self, ids: tf.RaggedTensor, strings: tf.RaggedTensor) -> tf.RaggedTensor:
        """Replaces unknown ids, [words, tokens], by those of the bytes of their strings, or a run of them by one."""
        flat = ids.flat_values
        is_unknown, row = flat == self._unknown, ids.value_rowids()
        if not len(self._ids):
            follows = tf.concat([[False], is_unknown[1:] & is_unknown[:-1] & (row[1:] == row[:-1])], 0)
            return tf.ragged.boolean_mask(ids, ids.with_flat_values(~follows[: tf.size(flat)]))
        characters = tf.where(is_unknown, strings.flat_values, "")
        of_bytes = of_each_byte(characters, self._ids)
        one = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(flat, ~is_unknown), tf.cast(~is_unknown, tf.int64))
        return ids.with_flat_values(tf.concat([one, of_bytes], axis=1)).merge_dims(1, 2)


class UnigramGraph(tf.Module):
    """Cuts words into tokens with the largest sum of scores (Kudo, arXiv 1804.10959); of equal ones, the longest."""

    def __init__(self, model: Mapping[str, Any], unspelled: Collection[str]):
        """Takes the content of a model in tokenizer.json; raises a ValueError for what has no ops."""
        super().__init__()
        tokens = {token: number for number, (token, _) in enumerate(model["vocab"]) if token not in unspelled}
        self._scores = tf.constant([score for _, score in model["vocab"]], tf.float64)
        if model.get("unk_id") is None:
            raise ValueError("its model has no unknown token")
        self._unknown, self._lowest = model["unk_id"], min(score for _, score in model["vocab"]) - _PENALTY
        self._longest = max(map(len, tokens))
        self._bytes = ByteIds(tokens, model.get("byte_fallback", False), self._unknown)
        self._table = table(tokens)

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of the tokens of words: string [n] to int32 [n, tokens]."""
        lengths = tf.strings.length(words, unit="UTF8_CHAR")
        longest = tf.maximum(tf.reduce_max(lengths), 0)  # Without words the maximum is negative.
        sizes = tf.range(self._longest, 0, -1)

        def step(end: tf.Tensor, best: tf.Tensor, size: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
            rows = tf.where(lengths >= end)[:, 0]
            begins = end - sizes
            usable = tf.boolean_mask(tf.stack([sizes, begins], 1), begins >= 0)
            own_sizes, begins = usable[:, 0], usable[:, 1]
            shape = tf.stack([tf.size(rows), tf.size(begins)])
            own = tf.broadcast_to(tf.gather(words, rows)[:, tf.newaxis], shape)
            parts = [tf.broadcast_to(each[tf.newaxis], shape) for each in (begins, own_sizes)]
            found = self._table.lookup(tf.strings.substr(own, *parts, unit="UTF8_CHAR"))
            is_unknown = (found == _NONE) & (own_sizes == 1)
            score = tf.where(
                is_unknown, tf.constant(self._lowest, tf.float64), tf.gather(self._scores, tf.maximum(found, 0))
            )
            before = tf.gather(tf.gather(best, rows), begins, axis=1)
            score = tf.where((found == _NONE) & ~is_unknown, _LOWEST, score + before)
            is_best = score == tf.reduce_max(score, axis=1, keepdims=True)
            # The first one: which of equal ones tf.argmax returns is not said.
            choice = tf.reduce_min(tf.where(is_best, tf.range(tf.size(begins)), tf.int32.max), axis=1)
            place = tf.stack([tf.cast(rows, tf.int32), tf.fill(tf.shape(rows), end)], 1)
            token = tf.gather(tf.where(is_unknown, self._unknown, found), choice, batch_dims=1)
            best = tf.tensor_scatter_nd_update(best, place, tf.gather(score, choice, batch_dims=1))
            size = tf.tensor_scatter_nd_update(size, place, tf.gather(own_sizes, choice))
            return end + 1, best, size, tf.tensor_scatter_nd_update(ids, place, token)

        shape = tf.stack([tf.size(words), longest + 1])
        state = [1, tf.zeros(shape, tf.float64), tf.zeros(shape, tf.int32), tf.zeros(shape, tf.int32)]
        _, _, size, ids = tf.while_loop(lambda end, *_: end <= longest, step, state)

        def mark(end: tf.Tensor, is_end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            is_end |= tf.one_hot(end, longest + 1, True, False, dtype=tf.bool)
            return end - tf.gather(size, end, batch_dims=1), is_end

        state = [lengths, tf.zeros(shape, tf.bool)]
        _, is_end = tf.while_loop(lambda end, _: tf.reduce_any(end > 0), mark, state)
        is_end &= tf.range(longest + 1) > 0
        ids, size = (tf.ragged.boolean_mask(each, is_end) for each in (ids, size))
        end = tf.ragged.boolean_mask(tf.broadcast_to(tf.range(longest + 1), shape), is_end)
        own = tf.gather(words, ids.value_rowids())
        begin = end.flat_values - size.flat_values
        strings = tf.strings.substr(own, begin, size.flat_values, unit="UTF8_CHAR")
        return self._bytes(ids, ids.with_flat_values(strings))


class MergeGraph(tf.Module):
    """Merges the characters, or the bytes, of words by the merges of a BPE, the first of the best pair first."""

    def __init__(self, model: Mapping[str, Any], of_bytes: bool):
        """Takes the content of a model in tokenizer.json; raises a ValueError for what has no ops."""
        super().__init__()
        for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
            if model.get(name):
                raise ValueError(f"its model has {name}")
        tokens = model["vocab"]
        self._of_bytes, self._size = of_bytes, max(tokens.values()) + 1
        pairs = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        keys = np.array([tokens[a] * self._size + tokens[b] for a, b in pairs] or [-1], np.int64)
        _, first = np.unique(keys[::-1], return_index=True)  # The last one of equal pairs counts.
        ranks = len(keys) - 1 - first
        rows = tf.lookup.KeyValueTensorInitializer(tf.constant(keys[ranks]), tf.constant(ranks, tf.int64))
        self._ranks = tf.lookup.StaticHashTable(rows, _FAR)
        self._merged = tf.constant([tokens[a + b] for a, b in pairs] or [0], tf.int32)
        self._whole = table(tokens) if model.get("ignore_merges") else None
        if of_bytes:
            self._first = np.array([tokens[character] for character in byte_characters()], np.int32)
            return
        unknown = tokens.get(model.get("unk_token") or "")
        if unknown is None or not model.get("fuse_unk"):
            raise ValueError("its model has no unknown token for a run of unknown characters")
        self._unknown, self._table = unknown, table({token: n for token, n in tokens.items() if len(token) == 1})
        self._bytes = ByteIds(tokens, model.get("byte_fallback", False), unknown)

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of the tokens of words: string [n] to int32 [n, tokens]."""
        if self._of_bytes:
            first = of_each_byte(words, self._first)
        else:
            split = tf.strings.unicode_split(words, "UTF-8")
            ids = self._table.lookup(split.flat_values)
            first = self._bytes(split.with_flat_values(tf.where(ids == _NONE, self._unknown, ids)), split)
        ids = first.to_tensor(_NONE)
        ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=_NONE)
        if self._whole is not None:  # A word that is a token is not made by merges.
            if self._of_bytes:
                words = tf.strings.reduce_join(of_each_byte(words, tf.constant(byte_characters())), axis=1)
            whole = self._whole.lookup(words)[:, tf.newaxis]
            ids = tf.where(whole == _NONE, ids, tf.where(tf.range(tf.shape(ids)[1]) == 0, whole, _NONE))
        rank = self._rank(ids[:, :-1], ids[:, 1:])
        shapes = [tf.TensorShape([None, None])] * 2
        ids, _ = tf.while_loop(
            lambda ids, rank: tf.reduce_any(rank < _FAR), self._merge, [ids, rank], shape_invariants=shapes
        )
        return tf.ragged.boolean_mask(ids, ids != _NONE)

    def _merge(self, ids: tf.Tensor, rank: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Merges the best pair of each row; `rank` is that of each token and the one after it, [n, tokens - 1]."""
        place = tf.argmin(rank, axis=1, output_type=tf.int32)[:, tf.newaxis]
        best = tf.gather(rank, place, batch_dims=1)
        index = tf.range(tf.shape(rank)[1])[tf.newaxis]
        moves = (best < _FAR) & (index > place)
        is_here = (best < _FAR) & (index == place)
        merged = tf.gather(self._merged, tf.where(best < _FAR, best, 0))
        after = tf.where(moves, ids[:, 1:], ids[:, :-1])
        ids = tf.pad(tf.where(is_here, merged, after), [[0, 0], [0, 1]], constant_values=_NONE)
        later = tf.pad(rank[:, 1:], [[0, 0], [0, 1]], constant_values=_FAR)
        rank = tf.where(moves, later, rank)
        for own in (place - 1, place):  # Both pairs of the new token have other ranks.
            inside = tf.maximum(own, 0)
            pair = (tf.gather(ids, inside + step, batch_dims=1) for step in (0, 1))
            rank = tf.where((best < _FAR) & (index == own), self._rank(*pair), rank)
        return ids, rank

    def _rank(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        key = tf.cast(first, tf.int64) * self._size + tf.cast(second, tf.int64)
        return self._ranks.lookup(tf.where((first == _NONE) | (second == _NONE), tf.cast(-2, tf.int64), key))
