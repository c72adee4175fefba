"""The keys and values of the tokens that a decoder has read: the next token attends to them, they are not made again.

Memory: 2 x layers x texts x tokens x key and value heads x head size elements.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tftrain.model.block import BlockContext
from tftrain.model.decoder import Decoder
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.tensors import Batch

_TEXTS, _NUMBERS, _NUMBER = (tf.TensorSpec(shape, tf.int32) for shape in ([None, None], [None], []))


class LayerCache:
    """The keys and values of a layer, [texts, heads, capacity, head_size] each; those of future tokens are zeros."""

    def __init__(self, heads: int, head_size: int, dtype: str):
        """Has room for no token."""
        empty, shape = tf.zeros([0, heads, 0, head_size], dtype), [None, heads, None, head_size]
        self._held = [tf.Variable(empty, trainable=False, shape=shape) for _ in range(2)]

    def reserve(self, texts: int, capacity: int) -> None:
        """Forgets everything, and takes memory for `capacity` tokens of each text."""
        for held in self._held:
            held.assign(tf.zeros([texts, held.shape[1], capacity, held.shape[3]], held.dtype), read_value=False)

    def extended(self, key: tf.Tensor, value: tf.Tensor, positions: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes the keys and values of tokens.

        Args:
            key, value: [texts, heads, S, head_size].
            positions: int32 [texts, S]; None: these are the first tokens.

        Returns:
            Those that the tokens attend to: of the first tokens, their own; else all up to the capacity.
        """
        pairs = zip(self._held, (key, value), strict=True)
        if positions is None:
            for held, new in pairs:
                held[:, :, : tf.shape(new)[2]].assign(new)
            return key, value
        for held, new in pairs:
            held.scatter_nd_update(_indices(positions, held.shape[1]), new)
        return tuple(held.read_value() for held in self._held)


class LoopCache:
    """A `LayerCache` of tensors, which a loop hands on: calls of a graph that run at once share nothing."""

    def __init__(self, capacity: tf.Tensor, held: tuple[tf.Tensor, tf.Tensor] | None = None):
        """Has room for so many tokens of each text, and the keys and values of those before, if there are any."""
        self._capacity, self.held = capacity, held

    def extended(self, key: tf.Tensor, value: tf.Tensor, positions: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """See `LayerCache.extended`."""
        if positions is None:
            paddings = [[0, 0], [0, 0], [0, self._capacity - tf.shape(key)[2]], [0, 0]]
            self.held = tf.pad(key, paddings), tf.pad(value, paddings)
            return key, value
        pairs, indices = zip(self.held, (key, value), strict=True), _indices(positions, key.shape[1])
        self.held = tuple(tf.tensor_scatter_nd_update(held, indices, new) for held, new in pairs)
        return self.held


Caches = Sequence[LayerCache | LoopCache]  # one for each layer of a network


def _indices(positions: tf.Tensor, heads: int) -> tf.Tensor:
    """Returns the text, the head and the position of each token's vectors, int32 [texts, heads, S, 3]."""
    texts = tf.range(tf.shape(positions)[0])
    axes = texts[:, None, None], tf.range(heads)[None, :, None], positions[:, None, :]
    shape = tf.stack([tf.size(texts), heads, tf.shape(positions)[1]])
    return tf.stack([tf.broadcast_to(axis, shape) for axis in axes], axis=-1)


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
    def read(self, ids: tf.Tensor, lengths: tf.Tensor, capacity: tf.Tensor) -> tf.Tensor:
        """Reads texts from their beginning.

        Args:
            ids: int32 [texts, S], each with any tokens after its last one.
            lengths: int32 [texts].
            capacity: most tokens of a text, with those that will follow; at least S.

        Returns:
            The logits of the token after each text, [texts, vocabulary], fp32.
        """
        for layer in self._layers:
            layer.reserve(tf.shape(ids)[0], capacity)
        return _read(self._network, self._layers, ids, lengths)

    @tf.function(input_signature=[_NUMBERS, _NUMBERS, _NUMBER], autograph=False)
    def read_more(self, ids: tf.Tensor, positions: tf.Tensor, capacity: tf.Tensor) -> tf.Tensor:
        """Reads the next token of each text, int32 [texts], at its position, int32 [texts]; returns what `read` does.

        The capacity is that of `read`.
        """
        return _read_more(self._network, self._layers, ids, positions, capacity)


# Chooses a token of each row of logits, [texts, vocabulary]: int32 [texts]; the second argument counts the tokens.
Choose = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def generate(
    network: Decoder, ids: tf.Tensor, lengths: tf.Tensor, most: tf.Tensor, choose: Choose, end_id: int
) -> tf.Tensor:
    """Returns the tokens that follow texts, int32 [texts, most], with `end_id` from the first one on.

    It is a graph without variables of its own, for servers.

    Args:
        network: whole, with plain TensorFlow ops.
        ids, lengths: see `CachedDecoder.read`.
        most: how many tokens, int32 scalar; fewer if every text has ended.
        choose: the next token of each text.
        end_id: of the end token; negative: there is none.
    """
    capacity, longest = tf.shape(ids)[1] + most, int(min(network.embedding.longest, tf.int32.max))
    unfit = f"lengths and max_new_tokens: expected a sum of at most {longest}, the positions of the model"
    tf.debugging.assert_less_equal(tf.reduce_max(lengths) + most, longest, unfit)
    layers = [LoopCache(capacity) for _ in network.blocks]
    logits = _read(network, layers, ids, lengths)
    tokens = tf.fill([tf.shape(ids)[0], most], end_id)

    def goes_on(step: tf.Tensor, _logits: tf.Tensor, _held: list, _tokens: tf.Tensor, ended: tf.Tensor):
        return (step < most) & ~tf.reduce_all(ended)

    def append(step: tf.Tensor, logits: tf.Tensor, held: list, tokens: tf.Tensor, ended: tf.Tensor):
        chosen = tf.where(ended, end_id, choose(logits, step))
        tokens = tf.where(tf.range(most) == step, chosen[:, tf.newaxis], tokens)
        layers = [LoopCache(capacity, pair) for pair in held]
        logits = _read_more(network, layers, tf.maximum(chosen, 0), lengths + step, capacity)
        return step + 1, logits, [layer.held for layer in layers], tokens, ended | (chosen == end_id)

    start = (tf.constant(0), logits, [layer.held for layer in layers], tokens, tf.zeros_like(lengths, tf.bool))
    return tf.while_loop(goes_on, append, start)[3]


def _read(network: Decoder, layers: Caches, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    return _logits(network, layers, {"input_ids": ids}, AttentionMask(keys=tf.ones_like(ids), causal=True), lengths - 1)


def _read_more(
    network: Decoder, layers: Caches, ids: tf.Tensor, positions: tf.Tensor, capacity: tf.Tensor
) -> tf.Tensor:
    ids, positions = ids[:, tf.newaxis], positions[:, tf.newaxis]
    mask = AttentionMask(keys=tf.sequence_mask(positions[:, 0] + 1, capacity, tf.int32), positions=positions)
    return _logits(network, layers, {"input_ids": ids, "position_ids": positions}, mask, tf.zeros_like(ids[:, 0]))


def _logits(network: Decoder, layers: Caches, batch: Batch, mask: AttentionMask, indices: tf.Tensor) -> tf.Tensor:
    x = network.embedding(batch, None)
    for block, layer in zip(network.blocks, layers, strict=True):
        x = block(x, BlockContext(mask._replace(cache=layer)))
    x = tf.gather(x, indices, batch_dims=1)[:, tf.newaxis]
    return tf.cast(network.logits(x)[:, 0], tf.float32)
