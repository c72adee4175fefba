"""The exact number of weights of a model, part by part, whole or as one tensor parallel rank holds them.

The planner's inventories take the weights of their parts from here, and so do the totals that reports print.
"""

from typing import NamedTuple

from tftrain.config import ModelConfig
from tftrain.plan.workload import Workload

TOKEN_TYPES = 2  # of a workload, which does not state them


class Weights(NamedTuple):
    """Numbers of weights of a part.

    Attributes:
        divided: weights that tensor parallel ranks divide among themselves.
        whole: weights of which every tensor parallel rank has a copy.
    """

    divided: int
    whole: int

    @property
    def total(self) -> int:
        """The weights of the model."""
        return self.divided + self.whole

    def of_rank(self, tp: int) -> float:
        """Returns the weights that one of `tp` tensor parallel ranks holds."""
        return self.divided / tp + self.whole


class Parameters(NamedTuple):
    """Numbers of weights; the fields add up to `total`."""

    embeddings: int  # words, positions, token types; their norm where the blocks are post-norm
    layers: int  # all blocks
    final_norm: int  # after the last block where the blocks are pre-norm, else 0
    pooler: int
    mlm_head: int  # without its output matrix, which is the word embedding
    nsp_head: int  # or the classifier of a fine-tuned model

    @property
    def total(self) -> int:
        """All weights that are trained."""
        return sum(self)


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Returns the weights of a dense layer: inputs * outputs, and a bias of `outputs` numbers."""
    return inputs * outputs + (outputs if bias else 0)


def norm(width: int) -> int:
    """Returns the weights of a LayerNorm: gamma and beta."""
    return 2 * width


def block(width: int, inner: int, gated: bool, key_bias: bool) -> Weights:
    """Returns the weights of one block.

    Queries, keys, values and the wide layer are divided by columns, with their biases. The attention output and the
    narrow layer are divided by rows: every rank has their biases, and those of the two norms.

    Args:
        width: hidden size, H.
        inner: width of the feed-forward layer, I.
        gated: GeGLU: there is a second H x I projection with its bias.
        key_bias: the key projection has a bias.
    """
    attention = 2 * linear(width, width) + linear(width, width, bias=key_bias) + linear(width, width, bias=False)
    feed_forward = (2 if gated else 1) * linear(width, inner) + linear(inner, width, bias=False)
    return Weights(divided=attention + feed_forward, whole=2 * width + 2 * norm(width))


def embeddings(width: int, vocab: int, positions: int, token_types: int, normed: bool) -> Weights:
    """Returns the weights of the embeddings: the table of words is divided, the rest is not."""
    return Weights(divided=vocab * width, whole=(positions + token_types) * width + (norm(width) if normed else 0))


def heads(width: int, vocab: int) -> Weights:
    """Returns the weights of both pre-training heads: the bias of the logits is divided, the rest is not."""
    return Weights(divided=vocab, whole=linear(width, width) + mlm_transform(width) + linear(width, 2))


def mlm_transform(width: int) -> int:
    """Returns the weights between the encoder and the logits of masked positions: a dense layer and its norm."""
    return linear(width, width) + norm(width)


def count(model: ModelConfig, vocab_size: int) -> Parameters:
    """Counts the weights of an encoder with the heads of its task, or of a decoder.

    Args:
        model: the family and the sizes.
        vocab_size: rows of the word embedding (`model.vocab_size` may be None).

    Returns:
        The numbers by part.
    """
    width, pre_norm = model.hidden_size, model.is_pre_norm
    one = block(width, model.feed_forward_size, model.activation == "geglu", model.use_bias_in_keys)
    positions = model.max_position_embeddings if model.position_embedding == "learned" else 0
    types = model.type_vocab_size if model.has_token_types else 0
    outputs = model.outputs if model.is_fine_tuned else 2
    table = embeddings(width, vocab_size, positions, types, normed=not pre_norm)
    return Parameters(
        embeddings=table.total,
        layers=model.num_hidden_layers * one.total,
        final_norm=norm(width) if pre_norm else 0,
        pooler=linear(width, width) if model.has_pooler else 0,
        mlm_head=0 if model.is_decoder or model.is_fine_tuned else mlm_transform(width) + vocab_size,
        nsp_head=0 if model.is_decoder else linear(width, outputs) if outputs else 0,
    )


def of_block(work: Workload) -> Weights:
    """Returns the weights of one block of a workload."""
    return block(work.hidden, work.inner, work.gated, work.key_bias)


def of_embeddings(work: Workload) -> Weights:
    """Returns the weights of a workload's embeddings: a decoder's have neither token types nor a norm."""
    types = 0 if work.causal else TOKEN_TYPES
    return embeddings(work.hidden, work.vocab, work.positions, types, normed=not work.causal)


def of_head(work: Workload) -> Weights:
    """Returns the weights behind the blocks: a decoder's last norm, or an encoder's heads."""
    return Weights(0, norm(work.hidden)) if work.causal else heads(work.hidden, work.vocab)


def of_workload(work: Workload) -> int:
    """Returns the weights of a workload's whole model; an encoder's blocks are post-norm, a decoder's pre-norm.

    The logits are products with the word embedding and have no matrix of their own.
    """
    return work.layers * of_block(work).total + of_embeddings(work).total + of_head(work).total
