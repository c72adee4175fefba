"""A transformer block: self-attention and the feed-forward layer, which every model family shares."""

import abc
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

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
from tftrain.ops.tensors import dimension
from tftrain.parallel.tensor import cluster

SITES_PER_BLOCK = 4  # dropout sites; the fourth is unused


class BlockContext(NamedTuple):
    """What the blocks of a pass have in common beside the residual stream."""

    mask: AttentionMask
    dropout_key: DropoutKey | None = None  # None in inference
    deferred: Deferred | None = None  # see `Dense.call`


class SelfAttention(tf_keras.layers.Layer):
    """Multi-head self-attention (Vaswani et al., arXiv 1706.03762).

    Tensor parallel ranks divide the heads. Each rank has the query, key and value projections of its heads, and the
    rows of the output projection that belong to its heads. If several heads of queries share a head of keys and values
    (Ainslie et al., arXiv 2305.13245), they are on one rank.
    """

    def __init__(
        self,
        parameters: Parameters,
        spec: parts.AttentionSpec,
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
        self.scope, self.ranks = parameters.scope, parameters.ranks
        self.head_size, self.window, self.slopes, self.rotate = spec.head_size, spec.window, None, None
        if spec.positions == "rotary":
            self.rotate = functools.partial(rotate, theta=spec.theta, scaling=spec.scaling)
        self.query = Dense(parameters.inner("query"), spec.query)
        self.key = Dense(parameters.inner("key"), spec.key)
        self.value = Dense(parameters.inner("value"), spec.value)
        # Ranks that divide the heads have the whole norms, and of their gradients those of their own heads.
        is_divided = self.ranks.group.size > 1
        in_parts = replace(parameters, are_parts=is_divided)
        self.query_norm, self.key_norm = (
            Norm(in_parts.inner(name), spec.head_norm, config) if spec.head_norm else tf.identity
            for name in ("query_norm", "key_norm")
        )
        bias_later = config.dropout_add_impl == "fused"
        self.output_projection = Dense(parameters.inner("output"), spec.output, bias_later)
        self.heads = self.query.kernel.shape[1] // self.head_size
        first = parameters.offset("query/kernel") // self.head_size
        self.head_range = AxisRange(first, spec.heads) if is_divided else None
        if spec.positions == "alibi":
            self.slopes = alibi_slopes(spec.heads)[first : first + self.heads]

    def call(self, x: tf.Tensor, context: BlockContext) -> tf.Tensor:
        """Lets every token attend to the tokens of its sample.

        Maps [b, S, H], or this rank's tokens of it, to the same shape; for a sample without tokens, the result is the
        output projection of zeros.
        """
        entered = enter_dense(x, [self.query, self.key, self.value], self.scope, context.deferred)
        return leave_dense(self._attend(entered, *context), self.output_projection)

    @cluster
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
        heads = self.checkpointing.attention_core(self.core, query, key, value, mask, dropout)
        width = self.heads * self.head_size
        heads = tf.reshape(heads, [-1, dimension(heads, 1), width])  # [b, S, H of this rank]
        return self.output_projection(heads, deferred)

    def _split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [b, S, heads * head_size] to [b, S, heads, head_size], for the heads of this rank."""
        return tf.reshape(x, [-1, dimension(x, 1), x.shape[-1] // self.head_size, self.head_size])


class FeedForward(tf_keras.layers.Layer):
    """gelu(x W_up) W_down; with GeGLU (Shazeer, arXiv 2002.05202) (gelu(x W_gate) * (x W_up)) W_down; or SwiGLU."""

    def __init__(self, parameters: Parameters, spec: parts.FeedForwardSpec, config: ModelConfig):
        """Makes the projections `up` and `down`, and `gate` of a gated layer.

        The layer between `up` and `down` is partitioned over the tensor parallel ranks.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.scope, self.ranks = parameters.scope, parameters.ranks
        is_fused, bias_later = config.gelu_impl == "fused", config.dropout_add_impl == "fused"
        self.activation = _activation(spec.activation, is_fused, config.gelu_form)
        *wide, _ = spec.parts()
        self.wide = [Dense(parameters.inner(name), each, bias_later=is_fused) for name, each in wide]
        self.down = Dense(parameters.inner("down"), spec.down, bias_later)

    def call(self, x: tf.Tensor, deferred: Deferred | None = None) -> tf.Tensor:
        """Maps [b, S, H], or this rank's tokens of it, to the same shape, each token by itself; see `Dense.call`."""
        return leave_dense(self._feed(enter_dense(x, self.wide, self.scope, deferred), deferred), self.down)

    @cluster
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


class TransformerBlock(tf_keras.layers.Layer):
    """Self-attention and the feed-forward layer, each with a norm; a subclass says where the norms are."""

    def __init__(
        self,
        parameters: Parameters,
        spec: parts.TransformerBlockSpec,
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
        self.add_dropped = bias_dropout_add if config.dropout_add_impl == "fused" else reference_bias_dropout_add
        attention, feed_forward = parameters.inner("attention"), parameters.inner("feed_forward")
        self.attention = SelfAttention(attention, spec.attention, config, first_site, checkpointing)
        norm = spec.attention_norm
        self.attention_norm = Norm(attention.inner("norm"), norm, config) if norm else tf.identity
        self.feed_forward = FeedForward(feed_forward, spec.feed_forward, config)
        self.feed_forward_norm = Norm(feed_forward.inner("norm"), spec.feed_forward_norm, config)

    @abc.abstractmethod
    def call(self, x: tf.Tensor, context: BlockContext) -> tf.Tensor:
        """Maps the residual stream before the block to the stream after it.

        `x` is [b, S, H], or under sequence parallelism [b, S / ranks, H]; so is the result.
        """

    def _add(self, x: tf.Tensor, branch: tf.Tensor, layer: Dense, site: int, dropout: DropoutKey | None) -> tf.Tensor:
        """Returns x + dropout(branch); the bias of `layer`, the branch's last one, may still have to be added."""
        tokens = None  # which ones of its samples this rank's residual stream has
        if self.ranks.divide_sequence:
            length = x.shape[1] * self.ranks.group.size
            tokens = AxisRange(self.ranks.own_tokens(length)[0], length)
        drop = dropout_at(dropout, self.dropout_rate, self.first_site + site, tokens)
        return self.add_dropped(branch, layer.later_bias, x, drop)


class PostNormBlock(TransformerBlock):
    """As in BERT: h = norm(x + drop(attention(x))); norm(h + drop(feed_forward(h)))."""

    def call(self, x: tf.Tensor, context: BlockContext) -> tf.Tensor:
        """See `TransformerBlock`."""
        h = self._add_attention(x, self.attention(x, context), context.dropout_key)
        return self._add_feed_forward(h, self.feed_forward(h, context.deferred), context.dropout_key)

    @cluster
    def _add_attention(self, x: tf.Tensor, branch: tf.Tensor, dropout_key: DropoutKey | None) -> tf.Tensor:
        return self.attention_norm(self._add(x, branch, self.attention.output_projection, 1, dropout_key))

    @cluster
    def _add_feed_forward(self, h: tf.Tensor, branch: tf.Tensor, dropout_key: DropoutKey | None) -> tf.Tensor:
        return self.feed_forward_norm(self._add(h, branch, self.feed_forward.down, 2, dropout_key))


class PreNormBlock(TransformerBlock):
    """As in GPT-2 (arXiv 2002.04745): h = x + drop(attention(norm(x))); h + drop(feed_forward(norm(h)))."""

    def call(self, x: tf.Tensor, context: BlockContext) -> tf.Tensor:
        """See `TransformerBlock`."""
        h, normed = self._add_attention(x, self.attention(self.attention_norm(x), context), context.dropout_key)
        return self._add_feed_forward(h, self.feed_forward(normed, context.deferred), context.dropout_key)

    @cluster
    def _add_attention(
        self, x: tf.Tensor, branch: tf.Tensor, dropout_key: DropoutKey | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        h = self._add(x, branch, self.attention.output_projection, 1, dropout_key)
        return h, self.feed_forward_norm(h)

    @cluster
    def _add_feed_forward(self, h: tf.Tensor, branch: tf.Tensor, dropout_key: DropoutKey | None) -> tf.Tensor:
        return self._add(h, branch, self.feed_forward.down, 2, dropout_key)


def block_class(spec: parts.TransformerBlockSpec) -> type[TransformerBlock]:
    """Returns the class of the blocks of an architecture."""
    return PreNormBlock if spec.pre_norm else PostNormBlock
