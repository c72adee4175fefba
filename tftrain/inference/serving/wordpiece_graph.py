"""WordPiece as a graph of ops that TensorFlow itself has; `input.tokenization` is its specification."""

import tensorflow as tf

from tftrain.input.normalization import LONGEST_WORD
from tftrain.input.vocabulary import Vocabulary

_INSIDE = "##"
_NONE = -1


class WordPieceGraph(tf.Module):
    """Cuts words into pieces of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__()
        tokens = vocabulary.tokens
        self._unknown = vocabulary.id("[UNK]")
        self._longest = max(len(token.removeprefix(_INSIDE)) for token in tokens)
        ids = tf.range(len(tokens), dtype=tf.int32)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(tokens), ids), default_value=_NONE
        )

    def __call__(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the ids of the tokens: string [n, words] to int32 [n, tokens]."""
        different, index = tf.unique(words.flat_values)
        pieces = tf.gather(self._pieces(different), index)
        return words.with_flat_values(pieces).merge_dims(1, 2)

    def _pieces(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of each word, [words, pieces]."""
        lengths = tf.strings.length(words, unit="UTF8_CHAR")
        sizes = tf.range(1, self._longest + 1)

        def is_going(place, ids):
            return tf.reduce_any(place < lengths)

        def step(place, ids):
            inside = tf.where(place > 0, _INSIDE, "")[:, tf.newaxis]
            # The end of a finished word is no place in it.
            begin = tf.minimum(place, lengths - 1)[:, tf.newaxis]
            shape = [tf.size(words), self._longest]
            own, begin, every = (tf.broadcast_to(x, shape) for x in (words[:, tf.newaxis], begin, sizes))
            part = tf.strings.substr(own, begin, every, unit="UTF8_CHAR")
            found = self._table.lookup(tf.strings.join([tf.broadcast_to(inside, shape), part]))
            fits = (found != _NONE) & (place[:, tf.newaxis] + sizes <= lengths[:, tf.newaxis])
            size = tf.reduce_max(tf.where(fits, sizes, 0), axis=1)
            token = tf.gather(found, tf.maximum(size - 1, 0), batch_dims=1)
            going = place < lengths
            token = tf.where(going, tf.where(size > 0, token, self._unknown), _NONE)
            # A word with a part that is no piece is [UNK] as a whole.
            ids = tf.where((going & (size == 0))[:, tf.newaxis], _NONE, ids)
            ids = tf.concat([ids, token[:, tf.newaxis]], axis=1)
            return tf.where(size > 0, place + size, lengths), ids

        place = tf.where(lengths > LONGEST_WORD, lengths, 0)
        ids = tf.where(lengths > LONGEST_WORD, self._unknown, _NONE)[:, tf.newaxis]
        shapes = [tf.TensorShape([None]), tf.TensorShape([None, None])]
        _, ids = tf.while_loop(is_going, step, [place, ids], shape_invariants=shapes)
        return tf.ragged.boolean_mask(ids, ids != _NONE)
