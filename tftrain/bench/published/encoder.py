"""The inventory of the encoder of the published tables: this trainer's kernels, and tensors saved as when it ran.

Under XLA a plain op saves the tensors that its gradient reads. Names of tensors: u is one of the residual stream
(tokens x hidden), d one that ranks divide, s the scores, w the wide layer, k the keys.
"""

from tftrain.plan import inventory
from tftrain.plan.blocks import Inventory, SavedTensor, block_sizes
from tftrain.plan.kernels import RECOMPUTING
from tftrain.plan.workload import Workload


def block(work: Workload) -> Inventory:
    """Returns the inventory of one block on one tensor parallel rank."""
    found = inventory.block(work)
    # The keys' biases count in every row, as when constants were fitted.
    biases = 0 if work.model.block.attention.key.bias else work.model.width / work.tp
    return found._replace(saved=tuple(_saved(work)), weights=found.weights + biases)


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
    """Returns the inventory of the embeddings; the table's gradient is dense."""
    return inventory.embedding(work)._replace(summands=0.0)


def head(work: Workload) -> Inventory:
    """Returns the inventory of the heads: logits of the masked positions, in fp32, and the pooler."""
    found, logits = inventory.head(work), work.rows * work.predictions * work.model.vocab / work.tp
    saved = (
        SavedTensor("masked positions", 4 * found.entry),
        SavedTensor("logits and probabilities", (work.item + 8) * logits),
    )
    # The product of the next sentence is in no published row, as when constants were fitted.
    products = tuple(each for each in found.products if each.name != "next sentence")
    return found._replace(products=products, saved=saved)
