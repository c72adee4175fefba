"""The inventory of a BERT-like encoder on TensorFlow 2: post-norm blocks, every op fused or in plain TensorFlow.

A plain op is a chain of small ops. Without XLA each of them reads and writes memory, norms and softmax in fp32 in any
precision. XLA fuses neighbours, moves about as many bytes as a fused op, and still saves the tensors that their
gradients read. Tensors: u is one of the residual stream (tokens x hidden), d one that ranks divide, s the scores, w the
wide layer, k the keys.
"""

from typing import NamedTuple

from tftrain.plan.blocks import Kernel, Part, SavedTensor, products_of_block, products_of_heads, query_key_value_bytes
from tftrain.plan.decoder import sums_of_block
from tftrain.plan.workload import Workload

LOGIT_BYTES = (18, 22)  # moved for each logit forward and backward: bias, cast to fp32, softmax, its gradient, casts


class _Op(NamedTuple):
    """Passes of an op over memory, forward and backward."""

    fused: tuple[float, float]  # of the fused op
    compiled: tuple[float, float]  # of plain ops that XLA fuses
    plain: tuple[float, float]  # of plain ops, one by one
    in_xla: tuple[float, float] | None = None  # of the fused op in a step that XLA compiles; None if the same
    wide: bool = False  # whether plain ops are in fp32

    def passes(self, work: Workload, name: str) -> tuple[float, float]:
        """Returns the passes of the workload's implementation over a tensor in its precision."""
        if name in work.fused:
            return self.in_xla if work.compiled and self.in_xla else self.fused
        if work.compiled:
            return self.compiled
        factor = 4 / work.item if self.wide else 1.0
        return factor * self.plain[0], factor * self.plain[1]


# Reads and writes of the op's tensor; the plain ones are sums over the ops of `tftrain.model`. XLA fuses a plain norm
# with the adds around it, and a fused one with nothing; it draws dropout masks beside a fused softmax.
NORM = _Op(fused=(2, 3), compiled=(2, 4), plain=(15, 24), in_xla=(4, 8), wide=True)
SOFTMAX = _Op(fused=(2, 3), compiled=(3, 4), plain=(8, 9), wide=True)
GELU = _Op(fused=(2, 3), compiled=(4, 8), plain=(16, 24))
DROPOUT = _Op(fused=(0, 1), compiled=(4, 5), plain=(8, 6), in_xla=(3, 3))
ADD = _Op(fused=(3, 2), compiled=(3, 2), plain=(5, 3))
RECOMPUTING = ("heuristics", "recomputation")
LAUNCHES = {True: (16, 32), False: (60, 90)}  # of a block's kernels, by whether XLA fuses them


def block(work: Workload) -> Part:
    """Returns the inventory of one block on one tensor parallel rank."""
    tokens, item, t, model = work.rows * work.seq, work.item, work.tp, work.model
    u = tokens * model.width * item
    w, v = tokens * model.inner * item / t, u / work.stream_ranks
    s = 0.0 if "flash" in work.fused else work.rows * model.attention_heads / t * work.seq**2 * item
    d, k = query_key_value_bytes(work)
    attention = model.block.attention
    wides, weights = len(model.block.feed_forward.wide), model.block_weights.of_rank(t)
    if work.trainer == "encoder" and not model.block.attention.key.bias:
        weights += model.width / t  # of the keys: counted in every row, as when constants were fitted
    # As when constants were fitted, keys count even if they have none.
    biases = attention.output.bias * (2 * v + wides * w) + attention.query.bias * (d + 2 * k)
    kernels = [
        _kernel("norms", NORM.passes(work, "ln"), 2 * v + (d + k if attention.head_norm else 0)),
        _kernel("biases and residual adds", ADD.passes(work, "dropout_add"), 2 * v),
        _kernel("biases and transposes", (8, 10), (d + k) / 2),
        _kernel("scale, mask and softmax", SOFTMAX.passes(work, "softmax"), s, core=True),
        _kernel("gelu", GELU.passes(work, "gelu"), wides * w),
        _kernel("gradients of biases", (0, 1), biases),
        Kernel("launches", 0, 0, LAUNCHES[work.compiled]),
    ]
    if work.grappler in RECOMPUTING:  # norms and GeLU, before their gradients
        again = NORM.passes(work, "ln")[0] * 2 * u + GELU.passes(work, "gelu")[0] * wides * w
        kernels.append(Kernel("recomputed by Grappler", 0, again, (0, 0)))
    if work.attention_dropout:
        kernels.append(_kernel("attention dropout", DROPOUT.passes(work, "softmax"), s, core=True))
    if work.hidden_dropout:
        kernels.append(_kernel("hidden dropout", DROPOUT.passes(work, "dropout_add"), 2 * v))
    saved = tuple(_saved(work, u, d, k, w, s))
    return Part(products_of_block(work, joined=False), tuple(kernels), saved, v, sums_of_block(work, u), weights)


def _saved(work: Workload, u: float, d: float, k: float, w: float, s: float) -> list[SavedTensor]:
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


def _kernel(name: str, passes: tuple[float, float], size: float, core: bool = False) -> Kernel:
    """Returns a kernel without launches: they are counted once for the whole block."""
    return Kernel(name, passes[0] * size, passes[1] * size, (0, 0), core)


def embedding(work: Workload) -> Part:
    """Returns the inventory of the embeddings: look-ups, their sum and its norm; the table's gradient is dense."""
    u = work.rows * work.seq * work.model.width * work.item
    table = work.model.word.size / work.tp
    kernels = (_kernel("look-ups and norm", (8, 10), u), Kernel("table's gradient", 0, 3 * work.item * table, (10, 10)))
    masks = (SavedTensor("dropout mask", u),) if work.hidden_dropout else ()
    sums = ((u,), ()) if work.tp > 1 else ((), ())
    saved = (SavedTensor("input of the norm", u), *masks)
    return Part((), kernels, saved, u, sums, work.model.embedding_weights.of_rank(work.tp))


def head(work: Workload) -> Part:
    """Returns the inventory of the heads: logits of the masked positions, in fp32, and the pooler."""
    rows = work.rows * work.predictions
    logits, picked = rows * work.model.vocab / work.tp, rows * work.model.width * work.item
    # That of the next sentence is in no published row, as when constants were fitted.
    products = tuple(each for each in products_of_heads(work) if each.name != "next sentence")
    kernels = (_kernel("cross-entropy", LOGIT_BYTES, logits), Kernel("launches", 0, 0, (30, 40)))
    saved = (
        SavedTensor("masked positions", 4 * picked),
        SavedTensor("logits and probabilities", (work.item + 8) * logits),
    )
    sums = ((4.0 * rows,) * 2, (picked,)) if work.tp > 1 else ((), ())
    return Part(products, kernels, saved, picked, sums, work.model.output_weights.of_rank(work.tp))
