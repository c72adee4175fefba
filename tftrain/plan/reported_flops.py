"""The floating point operations of a workload, counted exactly and by the formulas of training logs."""

from tftrain.architecture import flops
from tftrain.plan.workload import Workload


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
        return flops.step(work.model, work.seq, work.predictions, work.global_batch * work.sequences)
    layers, width = work.model.layers, work.model.width
    plain = 96 * work.tokens * layers * width**2
    if formula == "old":
        return plain
    return plain * (1 + work.seq / (6 * width) + work.model.vocab / (16 * layers * width))
