"""The floating point operations of a step: its matrix products, counted exactly, a multiply and an add as two.

Everything else (norms, softmax, GeLU, dropout, look-ups, the optimizer) is not counted, as in the TFLOPs of training
logs. Recomputation is not counted either: it is the cost of a lever, not work of the model.
"""

from typing import NamedTuple

from tftrain.config import ModelConfig
from tftrain.plan.workload import Workload


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
    found = _forward(
        layers=model.num_hidden_layers,
        width=model.hidden_size,
        inner=model.feed_forward_size,
        gated=model.activation == "geglu",
        vocab=vocab_size,
        tokens=seq_length,
        predictions=seq_length if model.is_decoder else predictions,
    )
    return found._replace(pooler=0, mlm_transform=0) if model.is_decoder else found


def _forward(
    layers: int, width: int, inner: int, gated: bool, vocab: int, tokens: int, predictions: int
) -> ForwardFlops:
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


def of_sample(work: Workload) -> int:
    """Returns the operations of one forward pass over one sample of a workload, counted exactly.

    A decoder predicts every token and has neither pooler nor the dense layer before the logits. Its causal mask saves
    nothing: the products are those of whole matrices.
    """
    found = _forward(
        work.layers, work.hidden, work.inner, work.gated, work.vocab, work.seq, predictions=work.predictions
    )
    return found.total - (found.pooler + found.mlm_transform if work.causal else 0)


def reported(work: Workload, formula: str) -> float:
    """Returns the operations of an update as one of the formulas of training logs counts them.

    Args:
        work: B = global_batch samples of S tokens, L layers of width h, V words.
        formula: "exact": 3 forward passes of matrix products, without recomputation. "old": 8 S B operations for each
            of the 12 L h^2 weights of the blocks, with a fourth pass for full checkpointing, without attention's
            products and the output matrix. "corrected" (Narayanan et al., arXiv 2104.04473, equation 3):
            96 B S L h^2 (1 + S / 6h + V / 16 L h).

    Returns:
        Floating point operations of the whole job.
    """
    if formula == "exact":
        return 3 * work.global_batch * of_sample(work)
    plain = 96 * work.global_batch * work.seq * work.layers * work.hidden**2
    if formula == "old":
        return plain
    return plain * (1 + work.seq / (6 * work.hidden) + work.vocab / (16 * work.layers * work.hidden))
