"""What every model family shares: an embedding, a list of blocks, and the variables of all of them.

Variables and activations are in one dtype, the compute dtype, with no casts between them; the float32 master weights
of mixed precision belong to the optimizer's state. Norms, softmax and the losses are float32 inside.

Tensor parallel ranks partition the attention heads, the feed-forward layers and the vocabulary. The norms and the small
tables are replicated: every rank computes the same with them. Pipeline stages hold different blocks. The first stage
has the embedding and the last one the output heads.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from tftrain.architecture.describe import describe
from tftrain.checkpoint.tensor_slice import TensorSlice
from tftrain.config.model import ModelConfig
from tftrain.formats.weights import Weights
from tftrain.model.block import SITES_PER_BLOCK, block_class
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.embedding import Embedding, TokenEmbedding
from tftrain.model.layers import Dense, Norm
from tftrain.model.parameters import ONE_RANK, Parameters
from tftrain.model.part import ModelPart, whole
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.attention_mask import AttentionMask
from tftrain.ops.dropout import DropoutKey
from tftrain.parallel.tensor import TensorRanks


class Transformer(tf_keras.Model):
    """Embedding and blocks; all variables exist once a model is constructed. A family adds its heads.

    Attributes:
        architecture: of the whole model.
        ranks: the tensor parallel ranks.
        part: the layers that this rank holds.
        token_embedding: the table of tokens, which may be the output layer too.
        embedding: None on a rank without it.
        blocks: those of the part.
        final_norm: after the blocks of a pre-norm model, on the rank with the heads.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        dtype: str,
        seed: int,
        checkpointing: Checkpointing = KEEP_ALL,
        ranks: TensorRanks = ONE_RANK,
        part: ModelPart | None = None,
        initial: Weights | None = None,
        released: bool = False,
    ):
        """Builds the model with its initial weights.

        Args:
            config: sizes and parts of the blocks; each implementation is "fused" or "reference".
            vocab_size: rows of the token embedding, over all ranks.
            dtype: "float32", "bfloat16" or "float16", of variables and activations alike; "float64" for tests.
            seed: seed of the initial weights.
            checkpointing: what backward recomputes.
            ranks: the tensor parallel ranks. A graph may contain the model only once, because the names of their
                collectives must be unique.
            part: the layers of this rank; by default all.
            initial: weights to begin with; a variable that they lack is drawn.
            released: whether the variables have no values until they are gathered.

        Raises:
            ValueError: there are fewer heads, elements of the feed-forward layer or words than tensor parallel ranks.
        """
        # Keras numbers the layers of all models of a process, and Grappler orders sums by the names of operations: a
        # model with the layers 99 and 100 would have other last bits.
        tf_keras.backend.reset_uids()
        super().__init__(dtype=dtype, autocast=False)
        self.architecture = architecture = describe(dataclasses.replace(config, vocab_size=vocab_size))
        size = ranks.group.size
        heads = architecture.block.attention.key_value_heads
        least = min(heads, architecture.inner, architecture.vocab)
        if least < size:
            raise ValueError(
                f"--tensor_parallel_size={size}: expected at most {least}, the least of num_attention_heads, "
                f"num_key_value_heads, intermediate_size and vocab_size"
            )
        self.ranks = ranks
        self.part = part = part or whole(architecture.layers)
        self._parameters = Parameters(dtype, seed, config.initializer_range, ranks, initial, released)
        # Of sharded layers, XLA compiles pieces, and the recomputation of a whole block is outside of them.
        self._checkpointing = checkpointing._replace(jit=checkpointing.jit and size == 1)
        if released:  # A block is recomputed from outside, see `tftrain.train.sharded`.
            self._checkpointing = KEEP_ALL
        on_tokens = self._parameters.in_parts(ranks.divide_sequence)
        self.embedding = self.final_norm = None
        tables = on_tokens.scope("embeddings")
        self.token_embedding = TokenEmbedding(tables, architecture, part)
        if part.embedding:
            self.embedding = Embedding(tables, architecture, config, self.token_embedding)
        self.blocks = [
            block_class(architecture.block)(
                on_tokens.scope(f"layer_{layer:02d}"),
                architecture.block_at(layer),
                config,
                SITES_PER_BLOCK * (layer + 1),
                checkpointing,
            )
            for layer in part.blocks
        ]
        if part.heads:
            if norm := architecture.final_norm:
                self.final_norm = Norm(on_tokens.scope("final_norm"), norm, config)
            self._make_heads(self._parameters, config)
        self.built = True

    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        """Makes the variables of the output heads beside the output layer; by default there are none."""

    @abc.abstractmethod
    def attention_mask(self, batch: Mapping[str, tf.Tensor]) -> AttentionMask:
        """Returns which keys a query of this batch attends to."""

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable, from the input to the output, in the same order for the same config."""
        return dict(self._parameters.variables)

    def initial_value(self, name: str) -> tf.Tensor:
        """Returns the initial value of a variable, float32, before it was rounded to the model's dtype."""
        return self._parameters.initial_value(name)

    def held_variables(self) -> dict[str, tf.Variable]:
        """Returns `named_variables`, and last the copy of the token embedding if another pipeline stage owns it."""
        return {**self._parameters.variables, **self.token_embedding.copy}

    def kernels(self, part: ModelPart) -> list[tf.Variable]:
        """Returns the kernels of all dense layers of a part of this rank's layers."""
        own = [self.blocks[self.part.blocks.index(index)] for index in part.blocks]
        in_blocks = {id(layer) for block in self.blocks for layer in block.submodules}
        heads = [layer for layer in self.submodules if part.heads and id(layer) not in in_blocks]
        layers = [layer for block in own for layer in block.submodules] + heads
        return [layer.kernel for layer in layers if isinstance(layer, Dense)]

    @property
    def summed(self) -> set[str]:
        """Global names of whole variables whose gradients are sums over the tensor parallel ranks."""
        return set(self._parameters.summed)

    @property
    def pieces(self) -> dict[str, TensorSlice]:
        """Global name -> the piece of the whole tensor that this rank's variable or copy holds."""
        return dict(self._parameters.pieces)

    def hidden_states(self, batch: Mapping[str, tf.Tensor], dropout: DropoutKey | None = None) -> tf.Tensor:
        """Maps token ids to the residual stream after the last block, [b, S, H]; see `Embedding.call`."""
        return self.run_blocks(self.embedding(batch, dropout), batch, dropout)

    def run_blocks(
        self,
        x: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dropout: DropoutKey | None,
        blocks: Sequence[int] | None = None,
        deferred: Deferred | None = None,
    ) -> tf.Tensor:
        """Runs the residual stream, [b, S, H], through blocks of this rank, by their indices; by default all.

        `batch` has what `attention_mask` reads. `dropout` is None in inference. For `deferred`, see `Dense.call`.
        """
        mask = self.attention_mask(batch)
        for index in self.part.blocks if blocks is None else blocks:
            block = self.blocks[self.part.blocks.index(index)]
            x = self._checkpointing.block(block, x, mask, dropout, deferred)
        return x

    def normed(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the residual stream after the last block with the final norm, if the model has one."""
        return x if self.final_norm is None else self.final_norm(x)
