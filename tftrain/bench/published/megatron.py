"""The inventory of a decoder as Megatron-LM runs it (arXiv 1909.08053), one launch after the other.

Saved tensors are those of Korthikanti et al. (arXiv 2205.05198, section 4.1): with every op fused and 16 bits, a block
saves s b h (10 + 24 / t + 5 a s / (h t)) bytes; the unfused softmax, and 32 bits, save more. Names of tensors:
u is a tensor of the residual stream (tokens x hidden), v what a rank has of it, d one that ranks always divide, k the
keys, s the scores. With sequence parallelism v is a part of u, and a block saves s b h (34 + 5 a s / h) / t bytes.
"""

from tftrain.plan import blocks
from tftrain.plan.blocks import Inventory, Kernel, SavedTensor
from tftrain.plan.workload import Workload

# Bytes moved for each logit forward (cast to fp32, maximum, difference, exponential, sum, quotient) and backward (the
# probabilities' copy, product with the loss's gradient, cast).
LOGIT_BYTES = (38, 22)
FUSED_LOGIT_PASSES = (1, 2)  # a kernel reads the logits, and another one reads them and writes their gradients


def block(work: Workload) -> Inventory:
    """Returns the inventory of one block on one tensor parallel rank."""
    item, t, model = work.item, work.tp, work.model
    u, v, _, k, wide, scores = blocks.block_sizes(work)
    d = u / t
    biases = model.block.attention.output.bias * (2 * v + wide) + model.block.attention.query.bias * (d + 2 * k)
    heads, flash = work.rows * model.attention_heads / t, work.core != "softmax"
    mask = 1 / item  # a mask's byte for each element
    wides, products = len(model.block.feed_forward.wide), blocks.products_of_block(work, joined=True)
    batch = next(each.batch for each in products if each.core)
    # Megatron's kernel takes score matrices in fours; other numbers fall back to plain ops.
    fused_softmax = "softmax" in work.fused and batch % 4 == 0
    softmax = (2, 3, (1, 1)) if fused_softmax else (10, 12, (5, 5))
    gelu = (2, 3) if "gelu" in work.fused else (16, 24)
    weights = model.block_weights.of_rank(t)
    kernels = [
        Kernel("norms", 4 * v, 6 * v, (2, 4)),
        Kernel("residual adds", 6 * v, 4 * v, (2, 4)),
        Kernel("sums of residual gradients", 0, 6 * v, (0, 2)),
        Kernel("gradients of biases", 0, biases, (0, 4)),
        Kernel("transposes", d + k, 4 * (d + k), (1, 6)),
        Kernel("scale, mask and softmax", softmax[0] * scores, softmax[1] * scores, softmax[2], core=True),
        Kernel("gelu", gelu[0] * wides * wide, gelu[1] * wides * wide, (1, 1)),
        Kernel("sums of weight gradients", 0, 3 * item * weights, (0, 12)),
        Kernel("launches of products", 0, 0, (6, 12)),
    ]
    if work.hidden_dropout:
        kernels.append(Kernel("dropout of residual adds", 2 * mask * v, 2 * mask * v, (0, 0)))
    if work.attention_dropout:
        moved = (2 + mask) * scores
        kernels.append(Kernel("attention dropout", moved, moved, (1, 1), core=True))
    core = ("log-sum-exp of the scores", 4 * heads * work.seq) if flash else ("attention probabilities", scores)
    saved = [
        SavedTensor("inputs of norms", 2 * v),
        SavedTensor("normed inputs of products", 2 * v),
        SavedTensor("queries, keys and values", d + 2 * k),
        SavedTensor(*core, core=True),
        SavedTensor("context", d),
        SavedTensor("input of gelu", wides * wide),
        SavedTensor("output of gelu", wide),
    ]
    if "gelu" not in work.fused:
        saved.append(SavedTensor("terms of gelu", 2 * wide))
    if work.attention_dropout:
        saved += [
            SavedTensor("attention dropout mask", mask * scores, True),
            SavedTensor("dropped probabilities", scores, True),
        ]
    if work.hidden_dropout:
        saved += [SavedTensor("dropout masks", 2 * mask * v)]
    if not fused_softmax:
        saved += [SavedTensor("masked scores", scores, True)]
    return Inventory(products, tuple(kernels), tuple(saved), v, blocks.sums_of_block(work, u), weights)


def embedding(work: Workload) -> Inventory:
    """Returns the inventory of the embedding: look-ups, their sum, dropout; the table's gradient is dense."""
    tokens, item = work.rows * work.seq, work.item
    u, table = tokens * work.model.width * item, work.model.word.size / work.tp
    kernels = (
        Kernel("look-ups and dropout", 8 * u, 6 * u, (6, 8)),
        Kernel("table's gradient", 0, 4 * item * table, (0, 2)),
    )
    mask = (SavedTensor("dropout mask", u / item / work.stream_ranks),) if work.hidden_dropout else ()
    sums = ((u,), ()) if work.tp > 1 else ((), ())
    return Inventory((), kernels, mask, u, sums, work.model.embedding_weights.of_rank(work.tp))


def head(work: Workload) -> Inventory:
    """Returns the inventory of the output: last norm, logits of every token, and their cross-entropy.

    The cross-entropy is one op in the precision of the logits, if it is fused, and plain ops in fp32 otherwise.
    """
    tokens, item = work.rows * work.seq, work.item
    u, logits = tokens * work.model.width * item, tokens * work.model.vocab / work.tp
    v = u / work.stream_ranks
    table, fused = work.model.word.size / work.tp, "cross_entropy" in work.fused
    moved = [passes * item * logits for passes in FUSED_LOGIT_PASSES] if fused else [n * logits for n in LOGIT_BYTES]
    kernels = (
        Kernel("last norm", 2 * v, 3 * v, (1, 2)),
        Kernel("cross-entropy", *moved, (1, 1) if fused else (25, 8)),
        Kernel("launches of products", 0, 0, (1, 2)),
        Kernel("sums of weight gradients", 0, 3 * item * table, (1, 3)),
    )
    per_logit = 2 * item if fused else item + 4
    saved = (SavedTensor("input of the last norm", 2 * v), SavedTensor("logits and probabilities", per_logit * logits))
    small = 4.0 * tokens
    sums = ((small, small, small), (u,)) if work.tp > 1 else ((), ())
    weights = work.model.output_weights.of_rank(work.tp)
    return Inventory(blocks.products_of_heads(work), kernels, saved, u, sums, weights)
