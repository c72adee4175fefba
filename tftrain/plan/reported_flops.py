"""The floating point operations of a workload, counted exactly and by the formulas of training logs."""

from tftrain.plan import flops
from tftrain.plan.workload import Workload


def of_sample(work: Workload) -> int:
    """Returns the operations of one forward pass over one sample of a workload, counted exactly.

    A decoder predicts every token and has neither pooler nor the dense layer before the logits. Its causal mask saves
    nothing: the products are those of whole matrices.
    """
    found = flops.forward_of_sizes(
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
