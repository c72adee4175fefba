"""The inventory of this project's encoder: it computes and moves as others on TensorFlow, and keeps its own tensors.

What is kept follows from the code in `tftrain/model` and `tftrain/ops`. Fused ops draw dropout masks again in backward;
the fused softmax keeps its probabilities only, the fused norm its input. Plain norms, softmax and GeLU are fp32 in any
precision: a norm keeps the centred input and the normed one, the softmax its result, GeLU its input and two factors,
and GeGLU both projections' outputs and the result of GeLU.
"""

from tftrain.number_formats import ITEM_BYTES
from tftrain.plan import encoder
from tftrain.plan.blocks import Kept, Kernel, Part
from tftrain.plan.workload import Workload

PLAIN_BYTES = 4  # of norms, softmax and GeLU


def block(work: Workload) -> Part:
    """Returns the inventory of one block on one tensor parallel rank."""
    part = encoder.block(work)
    # The published trainer's weights have the keys' bias in every row, as the constants were fitted: it hardly counts.
    weights = part.weights - (0 if work.key_bias else work.hidden / work.tp)
    return _accumulated(part._replace(kept=tuple(_kept(work)), weights=weights), work)


def embedding(work: Workload) -> Part:
    """Returns that of the embeddings; the table's gradient adds up the logits' and the look-ups', both of all rows."""
    part = encoder.embedding(work)
    return _accumulated(part._replace(summands=2 * work.item * work.vocab * work.hidden / work.tp), work)


def head(work: Workload) -> Part:
    """Returns that of the two heads."""
    return _accumulated(encoder.head(work), work)


def _accumulated(part: Part, work: Workload) -> Part:
    """Adds what sums over micro-batches move: a gradient and the sum are read, the sum is written."""
    if not work.accumulation:
        return part
    moved = part.weights * (work.item + 2 * ITEM_BYTES[work.accumulation])
    return part._replace(kernels=(*part.kernels, Kernel("sums over micro-batches", 0, moved, (0, 0))))


def _kept(work: Workload) -> list[Kept]:
    tokens, item, t = work.micro_batch * work.seq, work.item, work.tp
    numbers, wide = tokens * work.hidden, tokens * work.inner / t
    u, scores = numbers * item, work.micro_batch * work.heads / t * work.seq**2
    kept = [
        Kept("block's input", u),
        Kept("queries, keys and values", 3 * u / t),
        Kept("context", u / t),
        Kept("input of the wide layer", u),
        Kept("inputs of norms", 2 * u if "ln" in work.fused else 4 * PLAIN_BYTES * numbers),
        *_attention(work, scores),
        *_feed_forward(work, wide),
    ]
    if work.hidden_dropout and "dropout_add" not in work.fused:
        kept.append(Kept("dropout masks", 2 * u))
    return kept


def _attention(work: Workload, scores: float) -> list[Kept]:
    item = work.item
    if "softmax" in work.fused:
        return [Kept("attention probabilities", item * scores, core=True)]
    kept = [Kept("attention probabilities", PLAIN_BYTES * scores, core=True)]
    if work.attention_dropout:
        kept.append(Kept("attention dropout mask", item * scores, core=True))
    if work.attention_dropout or item != PLAIN_BYTES:
        kept.append(Kept("probabilities that weigh the values", item * scores, core=True))
    return kept


def _feed_forward(work: Workload, wide: float) -> list[Kept]:
    fused = "gelu" in work.fused
    size = wide * (work.item if fused else PLAIN_BYTES)
    kept = [Kept("input of gelu", size), Kept("input of the narrow layer", wide * work.item)]
    if not fused and work.grappler not in encoder.RECOMPUTING:
        kept.append(Kept("factors of gelu", 2 * size))
    if work.gated:
        kept.append(Kept("gate", size if fused else 2 * size))
    return kept
