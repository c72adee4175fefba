"""BERT for pre-training (Devlin et al., arXiv 1810.04805): embedding, a list of blocks, two heads.

Variables and activations are in one dtype, the compute dtype, with no casts between them; the float32 master weights
of mixed precision live in the optimizer's state. LayerNorm, softmax and the losses are float32 inside.

The ranks of a tensor parallel group divide between them the heads, the feed-forward layers and the vocabulary. What is
left, norms, small tables, the heads' own layers, each of them has and computes alike.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf
import tf_keras

from tftrain.checkpoint.piece import Piece
from tftrain.config import ModelConfig
from tftrain.model.attention import attention_mask
from tftrain.model.block import SITES_PER_BLOCK, Block
from tftrain.model.checkpointing import KEEP_ALL, Checkpointing
from tftrain.model.dropout import DropoutKey
from tftrain.model.embedding import Embedding
from tftrain.model.heads import MaskedLMHead, NextSentenceHead
from tftrain.model.normalization import LayerNorm
from tftrain.model.parameters import ONE_RANK, Parameters
from tftrain.model.vocabulary import SlicedLogits
from tftrain.parallel.mesh import Group

EMBEDDING_SITE = 0  # dropout site; the blocks' follow


class Outputs(NamedTuple):
    """What the model predicts for a micro-batch.

    Attributes:
        mlm_logits: [b, P, vocab], float32 (float64 in a float64 model), for the masked positions; SlicedLogits where
            ranks divide the vocabulary.
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
            config: sizes, and what the blocks are made of.
            vocab_size: rows of the word embedding, over all ranks.
            dtype: "float32", "bfloat16" or "float16", of variables and activations alike; "float64" for tests.
            seed: seed of the initial weights.
            checkpointing: what backward computes again.
            tensor: the ranks that divide the model between them. Its collectives can't be compiled by XLA, and a graph
                may hold the model once, or collectives of one name could meet.

        Raises:
            ValueError: there is not a head, an element of the feed-forward layer and a word for every rank.
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
            batch: input_ids, input_mask and segment_ids, int32 [b, S]; masked_lm_positions, int32 [b, P]. Other
                entries are not looked at. Only b may be unknown when a function is traced.
            dropout: what the dropout masks depend on; None is inference.
            lookup_table: this rank's word embedding as a tensor, read before the gradient tape starts. If given,
                input words are looked up in it rather than in the variable, and its gradient is `tf.IndexedSlices`,
                apart from the variable's, which then is that of the tied output alone. Else the variable's gradient
                is one dense sum of both.

        Returns:
            Outputs.

        Raises:
            ValueError: the sequence is longer than the position embedding.
        """
        length, longest = batch["input_ids"].shape[1], self.embedding.position.shape[0]
        if length > longest:
            raise ValueError(f"sequences of {length} tokens do not fit --max_position_embeddings={longest}")
        mask = attention_mask(batch["input_mask"], self.dtype)
        x = self.embedding(batch["input_ids"], batch["segment_ids"], dropout, lookup_table)  # [b, S, H]
        for block in self.blocks:
            x = self._checkpointing.block(block, x, mask, dropout)
        if self.final_norm is not None:
            x = self.final_norm(x)
        mlm_logits = self.masked_lm(x, batch["masked_lm_positions"], self.embedding.word)
        return Outputs(mlm_logits, self.next_sentence(x))
