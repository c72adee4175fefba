"""BERT for pre-training (Devlin et al., arXiv 1810.04805): embedding, a list of blocks, two heads.

Variables and activations are in one dtype, the compute dtype, with no casts between them; the float32 master weights
of mixed precision belong to the optimizer's state. LayerNorm, softmax and the losses are float32 inside.

Tensor parallel ranks divide the attention heads, the feed-forward layers and the vocabulary. The norms, the small
tables and the dense layers of the two heads are replicated: every rank computes the same with them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf
import tf_keras

from tftrain.checkpoint.piece import Piece
from tftrain.config import ModelConfig
from tftrain.model.attention import SelfAttention
from tftrain.model.attention_cores import AttentionMask
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.embedding import Embedding, SlicedLogits
from tftrain.model.feed_forward import FeedForward
from tftrain.model.heads import MaskedLMHead, NextSentenceHead
from tftrain.model.layers import LayerNorm
from tftrain.model.parameters import ONE_RANK, Parameters
from tftrain.ops.dropout import DropoutKey, bias_dropout_add, dropout_at, reference_bias_dropout_add
from tftrain.parallel.mesh import Group

EMBEDDING_SITE = 0  # dropout site of the embedding; the sites of the blocks follow
SITES_PER_BLOCK = 4  # the fourth is unused


class Outputs(NamedTuple):
    """What the model predicts for a micro-batch.

    Attributes:
        mlm_logits: [b, P, vocab], float32 (float64 in a float64 model), for the masked positions; SlicedLogits where
            tensor parallel ranks divide the vocabulary.
        nsp_logits: [b, 2], likewise; class 1 is a random next sentence.
    """

    mlm_logits: tf.Tensor | SlicedLogits
    nsp_logits: tf.Tensor


class BertPretrainer(tf_keras.Model):
    """The whole model; all variables exist once it is constructed."""

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        dtype: str,
        seed: int,
        checkpointing: Checkpointing = KEEP_ALL,
        tensor: Group = ONE_RANK,
    ):
        """Builds the model with its initial weights.

        Args:
            config: sizes and parts of the blocks; each implementation is "fused" or "reference".
            vocab_size: rows of the word embedding, over all ranks.
            dtype: "float32", "bfloat16" or "float16", of variables and activations alike; "float64" for tests.
            seed: seed of the initial weights.
            checkpointing: what backward recomputes.
            tensor: the tensor parallel ranks. XLA can't compile their collectives. A graph may contain the model only
                once, because the names of its collectives must be unique.

        Raises:
            ValueError: there are fewer heads, elements of the feed-forward layer or words than tensor parallel ranks.
        """
        super().__init__(dtype=dtype, autocast=False)
        least = min(config.num_attention_heads, config.feed_forward_size, vocab_size)
        if least < tensor.size:
            raise ValueError(
                f"--tensor_parallel_size={tensor.size}: expected at most {least}, the least of num_attention_heads, "
                f"intermediate_size and vocab_size"
            )
        parameters = Parameters(dtype, seed, config.initializer_range, tensor)
        self._parameters, self._checkpointing = parameters, checkpointing
        self.embedding = Embedding(parameters.scope("embeddings"), config, vocab_size, EMBEDDING_SITE)
        self.blocks = [
            Block(parameters.scope(f"layer_{layer:02d}"), config, SITES_PER_BLOCK * (layer + 1), checkpointing)
            for layer in range(config.num_hidden_layers)
        ]
        self.final_norm = None
        if config.norm_position == "pre":
            self.final_norm = LayerNorm(parameters.scope("final_norm"), config)
        self.masked_lm = MaskedLMHead(parameters.scope("masked_lm"), config, vocab_size)
        self.next_sentence = NextSentenceHead(
            parameters.scope("pooler"), parameters.scope("next_sentence"), config.hidden_size
        )
        self.built = True

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable, from the input to the output, in the same order for the same config."""
        return dict(self._parameters.variables)

    def initial_value(self, name: str) -> tf.Tensor:
        """Returns the initial value of a variable, float32, before it was rounded to the model's dtype."""
        return self._parameters.initial_value(name)

    @property
    def pieces(self) -> dict[str, Piece]:
        """Global name -> the piece of the whole tensor that this rank's variable holds."""
        return dict(self._parameters.pieces)

    def call(
        self,
        batch: Mapping[str, tf.Tensor],
        dropout: DropoutKey | None = None,
        lookup_table: tf.Tensor | None = None,
    ) -> Outputs:
        """Runs the model on a micro-batch.

        Args:
            batch: input_ids, input_mask and segment_ids, int32 [b, S]; masked_lm_positions, int32 [b, P]. The model
                ignores other entries. Only b may be unknown when a function is traced.
            dropout: what the dropout masks depend on; None in inference.
            lookup_table: this rank's word embedding as a tensor, read before the gradient tape starts. If given,
                input words are looked up in it instead of in the variable. Its gradient is then `tf.IndexedSlices`,
                and the variable's gradient comes from the tied output only. If not given, the variable's gradient is
                the dense sum of both.

        Returns:
            Outputs.

        Raises:
            ValueError: the sequence is longer than the position embedding.
        """
        x = self.embed(batch, dropout, lookup_table)  # [b, S, H]
        x = self.run_blocks(x, batch, dropout)  # [b, S, H]
        return self.heads(x, batch)

    def embed(
        self, batch: Mapping[str, tf.Tensor], dropout: DropoutKey | None, lookup_table: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Maps token ids to the residual stream [b, S, H]; see `call`."""
        length, longest = batch["input_ids"].shape[1], self.embedding.position.shape[0]
        if length > longest:
            raise ValueError(f"sequences of {length} tokens do not fit --max_position_embeddings={longest}")
        return self.embedding(batch["input_ids"], batch["segment_ids"], dropout, lookup_table)

    def run_blocks(
        self,
        x: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dropout: DropoutKey | None,
        first: int = 0,
        last: int | None = None,
    ) -> tf.Tensor:
        """Runs the residual stream [b, S, H] through blocks first..last-1; by default through all of them."""
        mask = AttentionMask(keys=tf.cast(batch["input_mask"], tf.int32))  # [b, S]
        for block in self.blocks[first:last]:
            x = self._checkpointing.block(block, x, mask, dropout)
        return x

    def heads(self, x: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> Outputs:
        """Maps the residual stream behind the last block, [b, S, H], to logits."""
        if self.final_norm is not None:
            x = self.final_norm(x)
        mlm_logits = self.masked_lm(x, batch["masked_lm_positions"], self.embedding.word)  # [b, P, vocab]
        return Outputs(mlm_logits, self.next_sentence(x))


class Block(tf_keras.layers.Layer):
    """Self-attention and the feed-forward layer, each with dropout, residual add and norm.

    Post-norm as in BERT, norm(x + sublayer(x)); or pre-norm (Xiong et al., arXiv 2002.04745), x + sublayer(norm(x)).
    """

    def __init__(
        self,
        parameters: Parameters,
        config: ModelConfig,
        first_site: int,
        checkpointing: Checkpointing = KEEP_ALL,
    ):
        """Makes the sub-layers `attention` and `feed_forward`, each with its `norm`.

        Args:
            parameters: makes the variables.
            config: sizes, the position of the norms and the implementations.
            first_site: first of the block's SITES_PER_BLOCK dropout sites.
            checkpointing: what backward recomputes.
        """
        super().__init__(dtype=parameters.dtype, autocast=False)
        self.pre_norm = config.norm_position == "pre"
        self.dropout_rate = config.hidden_dropout_prob
        self.fused_add = config.dropout_add_impl == "fused"
        self.attention_site, self.feed_forward_site = first_site + 1, first_site + 2
        attention, feed_forward = parameters.scope("attention"), parameters.scope("feed_forward")
        self.attention = SelfAttention(attention, config, first_site, checkpointing)
        self.attention_norm = LayerNorm(attention.scope("norm"), config)
        self.feed_forward = FeedForward(feed_forward, config)
        self.feed_forward_norm = LayerNorm(feed_forward.scope("norm"), config)

    def call(self, x: tf.Tensor, mask: AttentionMask, dropout_key: DropoutKey | None) -> tf.Tensor:
        """Maps the residual stream [b, S, H] before the block to that behind it.

        Args:
            x: the residual stream.
            mask: which keys a query attends to.
            dropout_key: None in inference.

        Returns:
            [b, S, H].
        """
        with_bias = not self.fused_add  # the fused add takes the bias of the sub-layer's last projection
        normed = self.attention_norm(x) if self.pre_norm else x
        attended = self.attention(normed, mask, dropout_key, with_bias=with_bias)  # [b, S, H]
        x = self._add(x, attended, self.attention.output_projection.bias, dropout_key, self.attention_site)
        if not self.pre_norm:
            x = self.attention_norm(x)
        fed = self.feed_forward(self.feed_forward_norm(x) if self.pre_norm else x, with_bias=with_bias)  # [b, S, H]
        x = self._add(x, fed, self.feed_forward.down.bias, dropout_key, self.feed_forward_site)
        return x if self.pre_norm else self.feed_forward_norm(x)

    def _add(self, x, branch, bias, dropout_key, site):
        """Adds the output of a sub-layer, with dropout, to the residual stream."""
        dropout = dropout_at(dropout_key, self.dropout_rate, site)
        if self.fused_add:
            return bias_dropout_add(branch, bias, x, dropout)
        return reference_bias_dropout_add(branch, None, x, dropout)
