"""The tensors that a block of this trainer saves for backward: they follow from `tftrain/model` and `tftrain/ops`.

Fused ops draw dropout masks again in backward. The fused softmax saves only its probabilities, the fused norm only its
input. Plain norms, softmax and GeLU are fp32 in any precision: a norm saves its input (a LayerNorm centred) and the
normed one, the softmax its result, GeLU its input and two factors, SiLU its input, and a gated layer both factors of
its product too. Shared keys and values are saved once. A causal mask saves no products: scores and context are products
of whole matrices.

In the programs that XLA compiles for GPUs, plain norms and GeLU save as little as fused ones: XLA computes the rest
again in backward. Dropout masks have a byte for each element. What else differs was read from such programs, by
`tools/gpu_memory.py`.
"""

from tftrain.plan.blocks import SavedTensor, block_sizes
from tftrain.plan.kernels import RECOMPUTING
from tftrain.plan.workload import Workload

MASK_BYTES = 1  # a boolean
PLAIN_BYTES = 4  # a number of norms, softmax and GeLU, and of sums over chunks of logits


def saved_by_block(work: Workload) -> tuple[SavedTensor, ...]:
    """Returns what one block saves on one tensor parallel rank, for one micro-batch."""
    tokens, heads = work.rows * work.seq, work.model.attention_heads / work.tp
    sizes = block_sizes(work)
    numbers, wide = tokens * work.model.width / work.stream_ranks, tokens * work.model.inner / work.tp
    stream, query, key, attention = numbers * work.item, sizes.query, sizes.key, work.model.block.attention
    within = (query + key) * (1 if _saves_input(work, "ln") else 2 * PLAIN_BYTES / work.item)
    saved = [
        SavedTensor("block's input", stream),
        SavedTensor("queries, keys and values", query + 2 * key),
        SavedTensor("context", query),
        SavedTensor("input of the wide layer", stream),
        SavedTensor("inputs of norms", 2 * stream if _saves_input(work, "ln") else 4 * PLAIN_BYTES * numbers),
        *([SavedTensor("inputs of the norms of queries and keys", within)] if attention.head_norm else []),
        *_attention(work, work.rows * heads * work.seq**2),
        *_feed_forward(work, wide),
    ]
    if work.compiled and not (work.hidden_dropout or work.model.block.pre_norm or "dropout_add" in work.fused):
        saved.append(SavedTensor("residual sums", 2 * stream))
    if work.hidden_dropout and "dropout_add" not in work.fused:
        saved.append(SavedTensor("dropout masks", 2 * numbers * _mask_bytes(work)))
    return tuple(saved)


def _saves_input(work: Workload, op: str) -> bool:
    """Whether an op saves only its input: a fused one, and a plain one in XLA's programs for GPUs."""
    return op in work.fused or work.compiled


def _mask_bytes(work: Workload) -> int:
    """Returns the bytes of an element of a dropout mask."""
    return MASK_BYTES if work.compiled else work.item


def _attention(work: Workload, scores: float) -> list[SavedTensor]:
    item = work.item
    if work.core != "softmax":
        return [SavedTensor("log-sum-exp of the scores", PLAIN_BYTES * scores / work.seq, core=True)]
    if "softmax" in work.fused:
        return [SavedTensor("attention probabilities", item * scores, core=True)]
    saved = [SavedTensor("attention probabilities", (item if work.compiled else PLAIN_BYTES) * scores, core=True)]
    if work.attention_dropout:
        saved.append(SavedTensor("attention dropout mask", _mask_bytes(work) * scores, core=True))
    if work.compiled and work.model.block.attention.key_value_heads < work.model.attention_heads:
        saved.append(SavedTensor("scores of shared keys", item * scores, core=True))
    if work.attention_dropout or item != PLAIN_BYTES or work.compiled:
        saved.append(SavedTensor("probabilities that weigh the values", item * scores, core=True))
    return saved


def _feed_forward(work: Workload, wide: float) -> list[SavedTensor]:
    fused = _saves_input(work, "gelu")
    size = wide * (work.item if fused else PLAIN_BYTES)
    saved = [SavedTensor("input of gelu", size), SavedTensor("input of the narrow layer", wide * work.item)]
    gelu = work.model.block.feed_forward.activation != "swiglu"
    if gelu and not fused and work.grappler not in RECOMPUTING:
        saved.append(SavedTensor("factors of gelu", 2 * size))
    if work.model.block.feed_forward.gate:
        saved.append(SavedTensor("gate", size if fused else 2 * size))
    return saved
