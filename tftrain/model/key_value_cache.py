"""The keys and values of the tokens that a decoder has read: the next token attends to them, they are not made again.

Memory: 2 x layers x texts x tokens x key and value heads x head size elements.
"""

import tensorflow as tf

from tftrain.model.attention_cores import AttentionMask
from tftrain.model.decoder import Decoder

_TEXTS, _NUMBERS, _NUMBER = (tf.TensorSpec(shape, tf.int32) for shape in ([None, None], [None], []))


class LayerCache:
    """The keys and values of a layer, [texts, room, heads, head_size] each; those of future tokens are zeros."""

    def __init__(self, heads: int, head_size: int, dtype: str):
        """Has room for no token."""
        empty, shape = tf.zeros([0, 0, heads, head_size], dtype), [None, None, heads, head_size]
        self._key, self._value = (tf.Variable(empty, trainable=False, shape=shape) for _ in range(2))

    def reserve(self, texts: int, room: int) -> None:
        """Forgets everything, and makes room."""
        for held in (self._key, self._value):
            held.assign(tf.zeros([texts, room, *held.shape[2:]], held.dtype), read_value=False)

    def extended(self, key: tf.Tensor, value: tf.Tensor, positions: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes the keys and values of tokens.

        Args:
            key, value: [texts, S, heads, head_size].
            positions: int32 [texts, S]; None: these are the first tokens.

        Returns:
            Those that the tokens attend to: of the first tokens, their own; else all that there is room for.
        """
        if positions is None:
            for held, new in ((self._key, key), (self._value, value)):
                held[:, : tf.shape(new)[1]].assign(new)
            return key, value
        texts = tf.range(tf.shape(positions)[0])[:, tf.newaxis]
        places = tf.stack([tf.broadcast_to(texts, tf.shape(positions)), positions], axis=-1)
        for held, new in ((self._key, key), (self._value, value)):
            held.scatter_nd_update(places, new)
        return self._key.read_value(), self._value.read_value()


class CachedDecoder:
    """A decoder that reads texts, and then one token more of each at a time."""

    def __init__(self, network: Decoder):
        """Has read nothing; `network` is whole, with plain TensorFlow ops."""
        attention = network.architecture.block.attention
        self._network = network
        self._layers = [
            LayerCache(attention.key_value_heads, attention.head_size, network.dtype) for _ in network.blocks
        ]

    @tf.function(input_signature=[_TEXTS, _NUMBERS, _NUMBER], autograph=False)
    def read(self, ids: tf.Tensor, lengths: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
        """Reads texts from their beginning.

        Args:
            ids: int32 [texts, S], each with any tokens after its last one.
            lengths: int32 [texts].
            room: most tokens of a text, with those that will follow; at least S.

        Returns:
            The logits of the token after each text, [texts, vocabulary], fp32.
        """
        for layer in self._layers:
            layer.reserve(tf.shape(ids)[0], room)
        mask = AttentionMask(keys=tf.ones_like(ids), causal=True)
        return self._logits({"input_ids": ids}, mask, lengths - 1)

    @tf.function(input_signature=[_NUMBERS, _NUMBERS, _NUMBER], autograph=False)
    def read_more(self, ids: tf.Tensor, positions: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
        """Reads the next token of each text.

        Args:
            ids: int32 [texts].
            positions: int32 [texts], of these tokens, below `room`.
            room: as in `read`.

        Returns:
            The logits of the token after it, [texts, vocabulary], fp32.
        """
        keys = tf.sequence_mask(positions + 1, room, tf.int32)
        ids, positions = ids[:, tf.newaxis], positions[:, tf.newaxis]
        mask = AttentionMask(keys=keys, positions=positions)
        return self._logits({"input_ids": ids, "position_ids": positions}, mask, tf.zeros_like(ids[:, 0]))

    def _logits(self, batch, mask, places):
        x = self._network.embedding(batch, None)
        for block, layer in zip(self._network.blocks, self._layers, strict=True):
            x = block(x, mask._replace(cache=layer), None)
        x = tf.gather(x, places, batch_dims=1)[:, tf.newaxis]
        return tf.cast(self._network.logits(x)[:, 0], tf.float32)
