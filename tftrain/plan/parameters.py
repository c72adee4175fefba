"""The exact number of weights of a model, part by part."""

from typing import NamedTuple

from tftrain.config import ModelConfig
from tftrain.plan.workload import Workload


class Parameters(NamedTuple):
    """Numbers of weights; the fields add up to `total`."""

    embeddings: int  # words, positions, token types; their norm where the blocks are post-norm
    layers: int  # all blocks
    final_norm: int  # after the last block where the blocks are pre-norm, else 0
    pooler: int
    mlm_head: int  # without its output matrix, which is the word embedding
    nsp_head: int

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


def layer(model: ModelConfig) -> int:
    """Returns the weights of one block.

    With H = hidden_size and I = feed_forward_size: four H x H projections with biases (the key's may have none), two
    norms of 2 H, H x I and I x H projections with biases, and with GeGLU another H x I with its bias for the gate.
    """
    width, inner = model.hidden_size, model.feed_forward_size
    attention = 3 * linear(width, width) + linear(width, width, bias=model.use_bias_in_keys)
    inward = 2 if model.activation == "geglu" else 1
    return attention + 2 * norm(width) + inward * linear(width, inner) + linear(inner, width)


def count(model: ModelConfig, vocab_size: int) -> Parameters:
    """Counts the weights of the encoder with both pre-training heads.

    Args:
        model: the encoder's sizes.
        vocab_size: rows of the word embedding (`model.vocab_size` may still be open).

    Returns:
        The numbers by part.
    """
    width, pre_norm = model.hidden_size, model.norm_position == "pre"
    rows = vocab_size + model.max_position_embeddings + model.type_vocab_size
    return Parameters(
        embeddings=rows * width + (0 if pre_norm else norm(width)),
        layers=model.num_hidden_layers * layer(model),
        final_norm=norm(width) if pre_norm else 0,
        pooler=linear(width, width),
        mlm_head=linear(width, width) + norm(width) + vocab_size,
        nsp_head=linear(width, 2),
    )


def of_workload(work: Workload) -> int:
    """Returns the weights of a workload's whole model: as `count` for an encoder with post-norm blocks.

    A decoder has V + S rows of embeddings, blocks of 4 H^2 + 2 H I weights with biases and two norms, and a last norm;
    its logits are products with the embedding.
    """
    width, inner, inward = work.hidden, work.inner, 2 if work.gated else 1
    attention = 4 * linear(width, width) - (0 if work.key_bias else width)
    blocks = work.layers * (attention + 2 * norm(width) + inward * linear(width, inner) + linear(inner, width))
    if work.causal:
        return blocks + (work.vocab + work.positions) * width + norm(width)
    embeddings = (work.vocab + work.positions + 2) * width + norm(width)
    heads = 2 * linear(width, width) + norm(width) + work.vocab + linear(width, 2)
    return blocks + embeddings + heads
