"""A transformer block: self-attention and the feed-forward layer, which every model family shares."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from tftrain.architecture import parts
from tftrain.config.model import ModelConfig
from tftrain.model.attention_cores import AttentionMask, core_of
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.layers import Dense, Entered, Norm, enter_dense, leave_dense
from tftrain.model.parameters import Parameters
from tftrain.model.positions import alibi_slopes, rotate
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import AxisRange, DropoutKey, bias_dropout_add, dropout_at, reference_bias_dropout_add
from tftrain.ops.gelu import bias_gelu, geglu, reference_bias_gelu, reference_geglu, reference_swiglu, swiglu
from tftrain.ops.shapes import dimension

SITES_PER_BLOCK = 4  # dropout sites; the fourth is unused


class SelfAttention(tf_keras.layers.Layer):
    """Multi-head self-attention (Vaswani et al., arXiv 1706.03762).

    Tensor parallel ranks divide the heads. Each rank has the query, key and value projections of its heads, and the
    rows of the output projection that belong to its heads. If several heads of queries share a head of keys and values
    (Ainslie et al., arXiv 2305.13245), they are on one rank.
    """

    def __init__(
        self,
        parameters: Parameters,
        spec: parts.Attention,
        config: ModelConfig,
        probabilities_site: int,
        checkpointing: Checkpointing = KEEP_ALL,
    ):
        """Makes the projections `query`, `key`, `value` and `output`.

        `probabilities_site` is the dropout site of the attention probabilities.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.core, self.checkpointing = core_of(config), checkpointing
        self.dropout_rate, self.dropout_site = config.attention_probs_dropout_prob, probabilities_site
        self.place, ranks = parameters.place, parameters.ranks
        self.head_size, self.window, self.slopes, self.rotate = spec.head_size, spec.window, None, None
        if spec.positions == "rotary":
            self.rotate = functools.partial(rotate, theta=spec.theta, scaling=spec.scaling)
        self.query = Dense(parameters.scope("query"), spec.query)
        self.key = Dense(parameters.scope("key"), spec.key)
        self.value = Dense(parameters.scope("value"), spec.value)
        # Ranks that divide the heads have the whole norms, and of their gradients those of their own heads.
        self.query_norm, self.key_norm = (
            Norm(parameters.in_parts(ranks.group.size > 1).scope(name), spec.head_norm, config)
            if spec.head_norm
            else tf.identity
            for name in ("query_norm", "key_norm")
        )
        bias_later = config.dropout_add_impl == "fused"
        self.output_projection = Dense(parameters.scope("output"), spec.output, config.residual_init_scale, bias_later)
        self.heads, self.head_range = self.query.kernel.shape[1] // self.head_size, None
        first = parameters.scope("query").offset("kernel") // self.head_size
        if ranks.group.size > 1:
            self.head_range = AxisRange(first, spec.heads)
        if spec.positions == "alibi":
            self.slopes = alibi_slopes(spec.heads)[first : first + self.heads]
        self._attend_as_piece = ranks.piece(self._attend)

    def call(
        self, x: tf.Tensor, mask: AttentionMask, dropout_key: DropoutKey | None, deferred: Deferred | None = None
    ) -> tf.Tensor:
        """Lets every token attend to the tokens of its sample.

        Args:
            x: [b, S, H], or this rank's tokens of it.
            mask: which keys a query attends to.
            dropout_key: None in inference.
            deferred: see `Dense.call`.

        Returns:
            Like `x`; for a sample without tokens, the output projection of zeros.
        """
        entered = enter_dense(x, [self.query, self.key, self.value], self.place, deferred)
        return leave_dense(self._attend_as_piece(entered, mask, dropout_key, deferred), self.output_projection)

    def _attend(
        self, x: Entered, mask: AttentionMask, dropout_key: DropoutKey | None, deferred: Deferred | None
    ) -> tf.Tensor:
        """Returns this rank's part of the output, [b, S, H]."""
        projected = x.outputs([self.query, self.key, self.value], deferred)
        query, key, value = (self._split_heads(each) for each in projected)
        query, key = self.query_norm(query), self.key_norm(key)
        if self.rotate:
            query, key = (self.rotate(each, positions=mask.positions) for each in (query, key))
        mask = mask._replace(slopes=self.slopes, window=self.window)
        dropout = dropout_at(dropout_key, self.dropout_rate, self.dropout_site, self.head_range)
        context = self.checkpointing.attention_core(self.core, query, key, value, mask, dropout)
        width = self.heads * self.head_size
        context = tf.reshape(context, [-1, dimension(context, 1), width])  # [b, S, H of this rank]
        return self.output_projection(context, deferred)

    def _split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [b, S, heads * head_size] to [b, S, heads, head_size], for the heads of this rank."""
        return tf.reshape(x, [-1, dimension(x, 1), x.shape[-1] // self.head_size, self.head_size])


class FeedForward(tf_keras.layers.Layer):
    """gelu(x W_up) W_down; with GeGLU (Shazeer, arXiv 2002.05202) (gelu(x W_gate) * (x W_up)) W_down; or SwiGLU."""

    def __init__(self, parameters: Parameters, spec: parts.FeedForward, config: ModelConfig):
        """Makes the projections `up` and `down`, and `gate` of a gated layer.

        The layer between `up` and `down` is partitioned over the tensor parallel ranks.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.place = parameters.place
        is_fused, bias_later = config.gelu_impl == "fused", config.dropout_add_impl == "fused"
        self.activation = _activation(spec.activation, is_fused, config.gelu_form)
        *wide, _ = spec.parts()
        self.wide = [Dense(parameters.scope(name), each, bias_later=is_fused) for name, each in wide]
        self.down = Dense(parameters.scope("down"), spec.down, config.residual_init_scale, bias_later)
        self._feed_as_piece = parameters.ranks.piece(self._feed)

    def call(self, x: tf.Tensor, deferred: Deferred | None = None) -> tf.Tensor:
        """Maps [b, S, H], or this rank's tokens of it, to the same shape, each token by itself; see `Dense.call`."""
        return leave_dense(self._feed_as_piece(enter_dense(x, self.wide, self.place, deferred), deferred), self.down)

    def _feed(self, x: Entered, deferred: Deferred | None) -> tf.Tensor:
        """Returns this rank's part of the output, [b, S, H]."""
        wide = x.outputs(self.wide, deferred)  # each [b, S, F of this rank]
        active = self.activation(*wide, *(layer.later_bias for layer in self.wide))
        return self.down(active, deferred)


def _activation(name: str, is_fused: bool, form: str) -> Callable[..., tf.Tensor]:
    """Returns a function of the wide projections and, if it is fused, of their biases; else these are added before."""
    if name == "swiglu":
        return swiglu if is_fused else reference_swiglu
    fused, reference = {"gelu": (bias_gelu, reference_bias_gelu), "geglu": (geglu, reference_geglu)}[name]
    return functools.partial(fused if is_fused else reference, form=form)


class Block(tf_keras.layers.Layer):
    """Self-attention and the feed-forward layer, each with a norm; a subclass says where the norms are.

    A subclass maps the residual stream before the block to that after it: call(x, mask, dropout_key, deferred) has x,
    [b, S, H], or under sequence parallelism [b, S / ranks, H]; for the others, and the result, see `SelfAttention`.
    """

    def __init__(
        self,
        parameters: Parameters,
        spec: parts.Block,
        config: ModelConfig,
        first_site: int,
        checkpointing: Checkpointing = KEEP_ALL,
    ):
        """Makes the sub-layers `attention` and `feed_forward`, each with its `norm`.

        `first_site` is the first of the block's SITES_PER_BLOCK dropout sites.
        """
        # Profiles find the ops of both variants by this name.
        super().__init__(name="block", dtype=parameters.dtype, autocast=False)
        self.ranks, self.dropout_rate, self.first_site = parameters.ranks, config.hidden_dropout_prob, first_site
        self.is_fused = config.dropout_add_impl == "fused"
        attention, feed_forward = parameters.scope("attention"), parameters.scope("feed_forward")
        self.attention = SelfAttention(attention, spec.attention, config, first_site, checkpointing)
        norm = spec.attention_norm
        self.attention_norm = Norm(attention.scope("norm"), norm, config) if norm else tf.identity
        self.feed_forward = FeedForward(feed_forward, spec.feed_forward, config)
        self.feed_forward_norm = Norm(feed_forward.scope("norm"), spec.feed_forward_norm, config)

    def _adding(self, layer: Dense, site: int, then: Callable[[tf.Tensor], Any] = lambda h: h) -> Callable[..., Any]:
        """Returns add(x, branch, dropout_key), which is then(x + dropout(branch)).

        Args:
            layer: the last one of the branch, whose bias may still have to be added.
            site: dropout site, counted from the block's first one.
            then: what follows up to the next collective.
        """
        add_dropped = bias_dropout_add if self.is_fused else reference_bias_dropout_add

        def add(x, branch, dropout_key):
            tokens = None  # which ones of its samples this rank's residual stream has
            if self.ranks.divide_sequence:
                length = x.shape[1] * self.ranks.group.size
                tokens = AxisRange(self.ranks.own_tokens(length)[0], length)
            dropout = dropout_at(dropout_key, self.dropout_rate, self.first_site + site, tokens)
            return then(add_dropped(branch, layer.later_bias, x, dropout))

        return self.ranks.piece(add)


class PostNormBlock(Block):
    """As in BERT: h = norm(x + attention(x)); norm(h + feed_forward(h))."""

    def __init__(self, *args):
        """See `Block`."""
        super().__init__(*args)
        self.add_attention = self._adding(self.attention.output_projection, 1, then=self.attention_norm)
        self.add_feed_forward = self._adding(self.feed_forward.down, 2, then=self.feed_forward_norm)

    def call(self, x, mask, dropout_key, deferred=None):
        """See `Block`."""
        h = self.add_attention(x, self.attention(x, mask, dropout_key, deferred), dropout_key)
        return self.add_feed_forward(h, self.feed_forward(h, deferred), dropout_key)


class PreNormBlock(Block):
    """As in GPT-2 (Xiong et al., arXiv 2002.04745): h = x + attention(norm(x)); h + feed_forward(norm(h))."""

    def __init__(self, *args):
        """See `Block`."""
        super().__init__(*args)
        normed = self.feed_forward_norm
        self.add_attention = self._adding(self.attention.output_projection, 1, then=lambda h: (h, normed(h)))
        self.add_feed_forward = self._adding(self.feed_forward.down, 2)

    def call(self, x, mask, dropout_key, deferred=None):
        """See `Block`."""
        attended = self.attention(self.attention_norm(x), mask, dropout_key, deferred)
        h, normed = self.add_attention(x, attended, dropout_key)
        return self.add_feed_forward(h, self.feed_forward(normed, deferred), dropout_key)


def block_class(spec: parts.Block) -> type[Block]:
    """Returns the class of the blocks of an architecture."""
    return PreNormBlock if spec.pre_norm else PostNormBlock
