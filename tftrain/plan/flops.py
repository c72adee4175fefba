"""The floating point operations of a step: its matrix products, counted exactly, a multiply and an add as two.

Everything else (norms, softmax, GeLU, dropout, look-ups, the optimizer) is not counted, as in the TFLOPs of training
logs. Recomputation is not counted either: it is the cost of a lever, not work of the model.
"""

from typing import NamedTuple

from tftrain.config import ModelConfig


class ForwardFlops(NamedTuple):
    """Operations of one forward pass over one sample; the fields add up to `total`."""

    attention_projections: int  # queries, keys, values and output of all layers
    attention_products: int  # scores and weighted values of all layers
    feed_forward: int  # of all layers
    pooler: int  # with the NSP head
    mlm_transform: int  # over the masked positions only, as the logits
    logits: int

    @property
    def total(self) -> int:
        """All matrix products."""
        return sum(self)


def forward_flops(model: ModelConfig, vocab_size: int, seq_length: int, predictions: int) -> ForwardFlops:
    """Counts the matrix products of one forward pass over one sample.

    With L layers, H = hidden_size, I = feed_forward_size, S tokens, P masked positions and V words:
    L * (8 S H^2 + 4 S^2 H + 4 S H I) + 2 H^2 + 4 H + 2 P H (H + V); with GeGLU 6 S H I instead of 4 S H I. A decoder
    predicts every token, P = S, and has neither pooler nor the dense layer before the logits. Its causal mask saves
    nothing: the products are those of whole matrices.

    Args:
        model: the sizes.
        vocab_size: rows of the word embedding, V.
        seq_length: tokens of a sample, S.
        predictions: masked positions of a sample, P, with padding, which is computed too.

    Returns:
        The operations by part.
    """
    found = forward_of_sizes(
        layers=model.num_hidden_layers,
        width=model.hidden_size,
        inner=model.feed_forward_size,
        gated=model.activation == "geglu",
        vocab=vocab_size,
        tokens=seq_length,
        predictions=seq_length if model.is_decoder else predictions,
    )
    return found._replace(pooler=0, mlm_transform=0) if model.is_decoder else found


def head_in_layers(model: ModelConfig, vocab_size: int, seq_length: int, predictions: int) -> float:
    """Returns the operations of the heads over those of one layer, see `forward_flops`."""
    found = forward_flops(model, vocab_size, seq_length, predictions)
    heads = found.pooler + found.mlm_transform + found.logits
    return heads / (found.total - heads) * model.num_hidden_layers


def forward_of_sizes(
    layers: int, width: int, inner: int, gated: bool, vocab: int, tokens: int, predictions: int
) -> ForwardFlops:
    """Counts the matrix products of one forward pass, see `forward_flops`."""
    return ForwardFlops(
        attention_projections=layers * 4 * 2 * tokens * width**2,
        attention_products=layers * 2 * 2 * tokens**2 * width,
        feed_forward=layers * (3 if gated else 2) * 2 * tokens * width * inner,
        pooler=2 * width * width + 2 * width * 2,
        mlm_transform=2 * predictions * width * width,
        logits=2 * predictions * width * vocab,
    )


def step_flops(model: ModelConfig, vocab_size: int, seq_length: int, predictions: int, samples: int) -> int:
    """Returns the operations of a training step: 3 x forward, as each product has two in the backward pass.

    Args:
        model, vocab_size, seq_length, predictions: as for `forward_flops`.
        samples: samples of the step, such as the global batch size.

    Returns:
        Floating point operations; divide by seconds and 1e12 for TFLOPs.
    """
    return 3 * samples * forward_flops(model, vocab_size, seq_length, predictions).total


def encoder_step_flops(model: ModelConfig, seq_length: int, samples: int) -> int:
    """Returns the operations of a training step without those of the heads; see `step_flops`."""
    found = forward_flops(model, 1, seq_length, 0)
    return 3 * samples * (found.attention_projections + found.attention_products + found.feed_forward)
