"""The inventory of the encoder of the published tables: this trainer's kernels, and tensors saved as when it ran.

Under XLA a plain op saves the tensors that its gradient reads. Names of tensors: u is one of the residual stream
(tokens x hidden), d one that ranks divide, s the scores, w the wide layer, k the keys.
"""

from tftrain.plan.blocks import (
    Inventory,
    SavedTensor,
    block_sizes,
    products_of_block,
    products_of_heads,
    sums_of_block,
)
from tftrain.plan.kernels import RECOMPUTING, kernels_of_block, kernels_of_embedding, kernels_of_head
from tftrain.plan.workload import Workload


def block(work: Workload) -> Inventory:
    """Returns the inventory of one block on one tensor parallel rank."""
    sizes, weights = block_sizes(work), work.model.block_weights.of_rank(work.tp)
    if not work.model.block.attention.key.bias:
        weights += work.model.width / work.tp  # the keys' biases: counted in every row, as when constants were fitted
    sums, saved = sums_of_block(work, sizes.stream), tuple(_saved(work))
    products = products_of_block(work, joined=False)
    return Inventory(products, kernels_of_block(work), saved, sizes.stream_of_rank, sums, weights)


def _saved(work: Workload) -> list[SavedTensor]:
    u, _, d, k, w, s = block_sizes(work)
    wides = len(work.model.block.feed_forward.wide)
    saved = [
        SavedTensor("block's input", u),
        SavedTensor("queries, keys and values", d + 2 * k),
        SavedTensor("attention probabilities", s, core=True),
        SavedTensor("context", d),
        SavedTensor("inputs of norms", 2 * u),
        SavedTensor("input of the wide layer", u),
        SavedTensor("input of gelu", wides * w),
        SavedTensor("output of gelu", w),
    ]
    if "ln" not in work.fused:
        saved.append(SavedTensor("norms before scale and shift", 2 * u))
    if "softmax" not in work.fused and work.compiled:  # the gradient of a plain one reads the probabilities alone
        saved.append(SavedTensor("masked scores", s, core=True))
    if "gelu" not in work.fused and work.grappler not in RECOMPUTING:
        saved.append(SavedTensor("terms of gelu", 2 * w))
    if work.tp > 1:
        saved.append(SavedTensor("inputs of sums over ranks", 2 * u))
    if work.attention_dropout:
        saved.append(SavedTensor("dropout mask and dropped probabilities", 2 * s, core=True))
    if work.hidden_dropout:
        saved.append(SavedTensor("dropout masks", 2 * u))
    return saved


def embedding(work: Workload) -> Inventory:
    """Returns the inventory of the embeddings: look-ups, their sum and its norm; the table's gradient is dense."""
    u = work.rows * work.seq * work.model.width * work.item
    saved = (SavedTensor("input of the norm", u), *([SavedTensor("dropout mask", u)] if work.hidden_dropout else []))
    sums, weights = ((u,), ()) if work.tp > 1 else ((), ()), work.model.embedding_weights.of_rank(work.tp)
    return Inventory((), kernels_of_embedding(work), saved, u, sums, weights)


def head(work: Workload) -> Inventory:
    """Returns the inventory of the heads: logits of the masked positions, in fp32, and the pooler."""
    rows = work.rows * work.predictions
    logits, picked = rows * work.model.vocab / work.tp, rows * work.model.width * work.item
    # The product of the next sentence is in no published row, as when constants were fitted.
    products = tuple(each for each in products_of_heads(work) if each.name != "next sentence")
    saved = (
        SavedTensor("masked positions", 4 * picked),
        SavedTensor("logits and probabilities", (work.item + 8) * logits),
    )
    sums = ((4.0 * rows,) * 2, (picked,)) if work.tp > 1 else ((), ())
    return Inventory(products, kernels_of_head(work), saved, picked, sums, work.model.output_weights.of_rank(work.tp))
