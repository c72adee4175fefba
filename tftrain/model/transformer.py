"""What every model family shares: an embedding, a list of blocks, and the variables of all of them.

Variables and activations are in one dtype, the compute dtype, with no casts between them; the float32 master weights
of mixed precision belong to the optimizer's state. Norms, softmax and the losses are float32 inside.

Tensor parallel ranks partition the attention heads, the feed-forward layers and the vocabulary. The norms and the small
tables are replicated: every rank computes the same with them. Pipeline stages hold different blocks. The first stage
has the embedding and the last one the output heads.
"""

import abc
from collections.abc import Collection, Sequence
from dataclasses import replace

import tensorflow as tf
import tf_keras

from tftrain.architecture.describe import describe
from tftrain.architecture.shard import VariableShard
from tftrain.config.model import ModelConfig
from tftrain.model.block import SITES_PER_BLOCK, BlockContext, TransformerBlock, block_class
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.embedding import Embedding, TokenEmbedding
from tftrain.model.layers import Dense, Norm
from tftrain.model.parameters import ONE_RANK, InitialValues, Parameter, Parameters
from tftrain.model.part import ModelPart
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import Batch
from tftrain.parallel.tensor import TensorRanks


class Transformer(tf_keras.Model):
    """Embedding and blocks; all variables exist once a model is constructed. A family adds its heads.

    Attributes:
        architecture: of the whole model.
        part: the layers that this rank holds.
        token_embedding: the table of tokens, which may be the output layer too.
        embedding: None on a rank without it.
        blocks: those of the part.
        final_norm: after the blocks of a pre-norm model, on the rank with the heads.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: str,
        seed: int,
        checkpointing: Checkpointing = KEEP_ALL,
        ranks: TensorRanks = ONE_RANK,
        part: ModelPart | None = None,
        initial: InitialValues | None = None,
        released: bool = False,
    ):
        """Builds the model with its initial weights.

        Args:
            config: sizes, with those of the vocabulary, and parts of the blocks; each implementation is "fused" or
                "reference".
            dtype: "float32", "bfloat16" or "float16", of variables and activations alike; "float64" for tests.
            ranks: the tensor parallel ranks. A graph may contain the model only once, because the names of their
                collectives must be unique.
            part: the layers of this rank; by default all.
            initial: values to begin with; None: all are drawn.
            released: whether the variables have no values until they are gathered.
        """
        # Keras numbers the layers of all models of a process, and Grappler orders sums by the names of operations: a
        # model with the layers 99 and 100 would have other last bits.
        tf_keras.backend.reset_uids()
        super().__init__(dtype=dtype, autocast=False)
        self.architecture = architecture = describe(config)
        self.ranks, self.part = ranks, part or ModelPart(tuple(range(architecture.layers)))
        self._parameters = Parameters(dtype, seed, config.initializer_range, ranks, initial, released)
        # XLA compiles clusters of sharded layers, and the recomputation of a whole block is outside of them.
        # If weights are released, a block is recomputed from outside, see `tftrain.train.sharded`.
        inside = checkpointing._replace(jit=checkpointing.jit and ranks.group.size == 1)
        self._checkpointing = KEEP_ALL if released else inside
        on_tokens = replace(self._parameters, are_parts=ranks.divide_sequence)
        tables = on_tokens.inner("embeddings")
        self.token_embedding = TokenEmbedding(tables, architecture, self.part)
        self.embedding = None
        if self.part.embedding:
            self.embedding = Embedding(tables, architecture, config, self.token_embedding)
        self.blocks = [self._block(layer, on_tokens, config, checkpointing) for layer in self.part.blocks]
        self.final_norm = None
        if self.part.heads:
            if norm := architecture.final_norm:
                self.final_norm = Norm(on_tokens.inner("final_norm"), norm, config)
            self._make_heads(self._parameters, config)
        self.built = True

    def _block(
        self, layer: int, parameters: Parameters, config: ModelConfig, checkpointing: Checkpointing
    ) -> TransformerBlock:
        spec, site = self.architecture.block_at(layer), SITES_PER_BLOCK * (layer + 1)
        return block_class(spec)(parameters.inner(f"layer_{layer:02d}"), spec, config, site, checkpointing)

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        """Makes the variables of the output heads beside the output layer; by default there are none."""

    @abc.abstractmethod
    def attention_mask(self, batch: Batch) -> AttentionMask:
        """Returns which keys a query of this batch attends to."""

    @abc.abstractmethod
    def named_outputs(self, batch: Batch, dropout: DropoutKey | None, heads: Collection[str]) -> dict[str, tf.Tensor]:
        """Returns the hidden states and what `heads` give for a batch by name, for a loop that is not tftrain's.

        The whole model is on this rank. `dropout` is None in inference.
        """

    def head_outputs(
        self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None = None
    ) -> tf.Tensor:
        """Maps the residual stream after the last block to what the head of a task gives, if there is one."""
        raise NotImplementedError

    def task_outputs(self, batch: Batch) -> tf.Tensor:
        """Returns what the head of a task gives for a batch, see `head_outputs`; inference."""
        return self.head_outputs(self.hidden_states(self.with_positions(batch)), batch, None)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters that this rank owns, by global name, from the input to the output."""
        return {name: each for name, each in self._parameters.made.items() if name not in self.token_embedding.copy}

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns the variables of `parameters` by global name."""
        return {name: each.variable for name, each in self.parameters.items()}

    def held_variables(self) -> dict[str, tf.Variable]:
        """Returns `named_variables`, and last the copy of the token embedding if another pipeline stage owns it."""
        return {**self.named_variables(), **self.token_embedding.copy}

    @property
    def shards(self) -> dict[str, VariableShard]:
        """Global name -> what this rank's variable or copy is of the whole tensor."""
        return {name: each.shard for name, each in self._parameters.made.items()}

    def kernels(self, part: ModelPart) -> list[tf.Variable]:
        """Returns the kernels of all dense layers of a part of this rank's layers."""
        own = [self.blocks[self.part.blocks.index(index)] for index in part.blocks]
        in_blocks = {id(layer) for block in self.blocks for layer in block.submodules}
        heads = [layer for layer in self.submodules if part.heads and id(layer) not in in_blocks]
        layers = [layer for block in own for layer in block.submodules] + heads
        return [layer.kernel for layer in layers if isinstance(layer, Dense)]

    def hidden_states(self, batch: Batch, dropout: DropoutKey | None = None) -> tf.Tensor:
        """Maps token ids to the residual stream after the last block, [b, S, H]; see `Embedding.call`."""
        return self.run_blocks(self.embedding(batch, dropout), batch, dropout)

    def run_blocks(
        self,
        x: tf.Tensor,
        batch: Batch,
        dropout: DropoutKey | None,
        blocks: Sequence[int] | None = None,
        deferred: Deferred | None = None,
    ) -> tf.Tensor:
        """Runs the residual stream, [b, S, H], through blocks of this rank, by their indices; by default all.

        `batch` has what `attention_mask` reads. `dropout` is None in inference. For `deferred`, see `Dense.call`.
        """
        context = BlockContext(as_intermediates(self.attention_mask(batch)), dropout, deferred)
        for index in self.part.blocks if blocks is None else blocks:
            block = self.blocks[self.part.blocks.index(index)]
            x = self._checkpointing.block(block, x, context)
        return x

    def normed(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the residual stream after the last block with the final norm, if the model has one."""
        return x if self.final_norm is None else self.final_norm(x)

    def output(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the output without heads, [b, S, H], of the residual stream after the last block."""
        return self.ranks.collect(self.normed(x), "heads")

    def with_positions(self, batch: Batch) -> Batch:
        """Returns a batch with position_ids, int32 [b, S], if the family does not count padding.

        There, a token's position is the number of tokens before it, and padding has the row before that of position 0,
        as in transformers (`create_position_ids_from_input_ids`). Rows without padding before or between their tokens
        need no position_ids: positions of padding change nothing.
        """
        if not self.architecture.config.first_row or "position_ids" in batch:
            return batch
        real = tf.cast(batch["input_mask"], tf.int32)
        return {**batch, "position_ids": tf.cumsum(real, axis=1) * real - 1}


def as_intermediates(mask: AttentionMask) -> AttentionMask:
    """Returns an equal mask whose tensors are computed, so that XLA stores them among its own intermediates.

    XLA records a call of an attention core into a CUDA graph again whenever the address of one of its operands changes,
    as that of a batch does in every step. XLA knows no range of these numbers, so it can't remove what changes none.
    """
    keys, sequences = tf.cast(mask.keys > 0, tf.int32), mask.sequences
    least = tf.int32.min + 1
    return mask._replace(keys=keys, sequences=None if sequences is None else tf.maximum(sequences, least))
