"""What every model family shares: a word table, an embedding, a list of blocks, and the variables of all of them.

Variables and activations are in one dtype, the compute dtype, with no casts between them; the float32 master weights
of mixed precision belong to the optimizer's state. LayerNorm, softmax and the losses are float32 inside.

Tensor parallel ranks divide the attention heads, the feed-forward layers and the vocabulary. The norms and the small
tables are replicated: every rank computes the same with them. Pipeline stages hold different blocks. The first stage
has the embedding and the last one the heads; if these are two ranks, both hold the word table.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from tftrain.architecture.describe import describe
from tftrain.checkpoint.piece import Piece
from tftrain.config.train import ModelConfig
from tftrain.formats.weights import Weights
from tftrain.model.attention_cores import AttentionMask
from tftrain.model.block import SITES_PER_BLOCK, Block
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.embedding import Embedding
from tftrain.model.layers import Dense, LayerNorm
from tftrain.model.parameters import ONE_RANK, Parameters
from tftrain.model.part import ModelPart, whole
from tftrain.ops.dropout import DropoutKey
from tftrain.parallel.tensor import TensorRanks

EMBEDDING_SITE = 0  # dropout site of the embedding; the sites of the blocks follow


class Transformer(tf_keras.Model):
    """Embedding and blocks; all variables exist once a model is constructed. A family adds its heads.

    Attributes:
        architecture: of the whole model.
        ranks: the tensor parallel ranks.
        part: the layers that this rank holds.
        word: [vocab, H], or this rank's rows of it; None on a rank with neither embedding nor heads.
        embedding: None on a rank without it.
        blocks: those of the part.
        final_norm: behind the blocks of a pre-norm model, on the rank with the heads.
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
    ):
        """Builds the model with its initial weights.

        Args:
            config: sizes and parts of the blocks; each implementation is "fused" or "reference".
            vocab_size: rows of the word embedding, over all ranks.
            dtype: "float32", "bfloat16" or "float16", of variables and activations alike; "float64" for tests.
            seed: seed of the initial weights.
            checkpointing: what backward recomputes.
            ranks: the tensor parallel ranks. A graph may contain the model only once, because the names of their
                collectives must be unique.
            part: the layers of this rank; by default all.
            initial: weights to begin with; a variable that they lack is drawn.

        Raises:
            ValueError: there are fewer heads, elements of the feed-forward layer or words than tensor parallel ranks.
        """
        super().__init__(dtype=dtype, autocast=False)
        self.architecture = architecture = describe(dataclasses.replace(config, vocab_size=vocab_size))
        size = ranks.group.size
        least = min(architecture.attention_heads, architecture.inner, architecture.vocab)
        if least < size:
            raise ValueError(
                f"--tensor_parallel_size={size}: expected at most {least}, the least of num_attention_heads, "
                f"intermediate_size and vocab_size"
            )
        self.ranks = ranks
        self.part = part = part or whole(architecture.layers)
        self._parameters = Parameters(dtype, seed, config.initializer_range, ranks, initial)
        # Of divided layers, XLA compiles pieces, and the recomputation of a whole block is outside of them.
        self._checkpointing = checkpointing._replace(jit=checkpointing.jit and size == 1)
        on_tokens = self._parameters.on_tokens()
        self.word = self.embedding = self.final_norm = None
        tables = on_tokens.scope("embeddings")
        if part.embedding or (part.heads and architecture.tied):
            is_copy, table = not part.embedding, architecture.word
            self.word = tables.normal("word", [table.rows, table.width], axis=0, is_copy=is_copy)
        if part.embedding:
            self.embedding = Embedding(tables, architecture, config, self.word, EMBEDDING_SITE)
        self.blocks = [
            Block(
                on_tokens.scope(f"layer_{layer:02d}"),
                architecture.block,
                config,
                SITES_PER_BLOCK * (layer + 1),
                checkpointing,
            )
            for layer in part.blocks
        ]
        if part.heads:
            if norm := architecture.final_norm:
                self.final_norm = LayerNorm(on_tokens.scope("final_norm"), norm, config)
            self._make_heads(self._parameters, config)
        self.built = True

    @abc.abstractmethod
    def _make_heads(self, parameters: Parameters, config: ModelConfig) -> None:
        """Makes the variables of the heads."""

    @abc.abstractmethod
    def attention_mask(self, batch: Mapping[str, tf.Tensor]) -> AttentionMask:
        """Returns which keys a query of this batch attends to."""

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable, from the input to the output, in the same order for the same config."""
        return dict(self._parameters.variables)

    def initial_value(self, name: str) -> tf.Tensor:
        """Returns the initial value of a variable, float32, before it was rounded to the model's dtype."""
        return self._parameters.initial_value(name)

    def copies(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable of this rank that another pipeline stage owns: the word table, or none."""
        return dict(self._parameters.copies)

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
    def pieces(self) -> dict[str, Piece]:
        """Global name -> the piece of the whole tensor that this rank's variable or copy holds."""
        return dict(self._parameters.pieces)

    def embed(
        self, batch: Mapping[str, tf.Tensor], dropout: DropoutKey | None, lookup_table: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Maps token ids to the residual stream, [b, S, H].

        Args:
            batch: input_ids, int32 [b, S]; segment_ids if the family has token types; position_ids if a row has several
                examples. When a function is traced, b may be unknown, and in inference with plain TensorFlow S too.
            dropout: what the dropout masks depend on; None in inference.
            lookup_table: this rank's word embedding as a tensor, read before the gradient tape starts. If given,
                input words are looked up in it instead of in the variable. Its gradient is then `tf.IndexedSlices`,
                and the variable's gradient comes from the tied output only. If not given, the variable's gradient is
                the dense sum of both.

        Raises:
            ValueError: the sequence is longer than the position embedding.
        """
        length, longest = batch["input_ids"].shape[1], self.embedding.longest
        if length is not None and length > longest:
            raise ValueError(f"sequences of {length} tokens do not fit --max_position_embeddings={longest}")
        return self.embedding(
            batch["input_ids"], batch.get("segment_ids"), dropout, lookup_table, batch.get("position_ids")
        )

    def hidden_states(
        self,
        batch: Mapping[str, tf.Tensor],
        dropout: DropoutKey | None = None,
        lookup_table: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Maps token ids to the residual stream behind the last block, [b, S, H]; see `embed`."""
        return self.run_blocks(self.embed(batch, dropout, lookup_table), batch, dropout)

    def run_blocks(
        self,
        x: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dropout: DropoutKey | None,
        blocks: Sequence[int] | None = None,
    ) -> tf.Tensor:
        """Runs the residual stream [b, S, H] through blocks of these indices; by default through all of the part."""
        mask = self.attention_mask(batch)
        for index in self.part.blocks if blocks is None else blocks:
            block = self.blocks[self.part.blocks.index(index)]
            x = self._checkpointing.block(block, x, mask, dropout)
        return x
