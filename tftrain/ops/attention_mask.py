"""Which keys a query attends to: what the model gives to every attention instead of a tensor of heads x S x S."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tftrain.ops.tensors import dimension


class AttentionMask(NamedTuple):
    """Which keys a query attends to, and what is added to their scores."""

    keys: tf.Tensor  # int32 [b, S], positive for a token, else padding, to which no query attends
    # Whether a query attends only to its own position and to those before it; then there are as many queries as keys.
    causal: bool = False
    # One for each head of this rank: slope * (key's position - query's position) is added to the scaled scores, see
    # `positions.distance_bias`. None: nothing is.
    slopes: Sequence[float] | None = None
    # int32 [b, S], above -2^31, which of the sequences of its row each token belongs to, 0 exactly where `keys` is 0: a
    # query attends only to tokens of its own sequence. None: to all of the row.
    sequences: tf.Tensor | None = None
    cache: Any = None  # holds the keys of the tokens before, see `key_value_cache`; for plain TensorFlow alone
    positions: tf.Tensor | None = None  # int32 [b, queries], if the keys before them are in the cache; None: 0, 1, ...
    window: int | None = None  # the largest distance of a key that a query attends to, at least 0; None: any

    def attended(self, queries: int | tf.Tensor) -> tf.Tensor:
        """Returns which keys each of so many queries attends to: bool [b, 1, queries, keys].

        The shape is [b, 1, 1, keys] if all queries attend to the same keys.
        """
        keys, sequences = dimension(self.keys, 1), self.sequences
        attended = tf.cast(self.keys, tf.bool)[:, None, None, :]
        if self.causal:
            attended &= tf.range(keys) <= tf.range(queries)[:, None]
        if sequences is not None:
            attended &= (sequences[:, :, None] == sequences[:, None, :])[:, None]
        if self.window is not None:
            attended &= tf.abs(tf.range(keys) - tf.range(queries)[:, None]) <= self.window
        return attended
