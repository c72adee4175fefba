"""The memory-bound kernels of a model's parts on TensorFlow 2: every op fused or in plain TensorFlow.

A plain op is a chain of small ops. Without XLA each of them reads and writes memory, norms and softmax in fp32 in any
precision. XLA fuses neighbours: `tools/gpu_budget.py --programs='bert large, plain'` counts the bytes of its kernels.
"""

from typing import NamedTuple

from tftrain.plan.blocks import Kernel, block_sizes, logit_rows
from tftrain.plan.workload import Workload

LOGIT_BYTES = (18, 22)  # moved for each logit forward and backward: bias, cast to fp32, softmax, its gradient, casts


class _Op(NamedTuple):
    """Passes of an op over memory, forward and backward."""

    fused: tuple[float, float]  # the fused op
    compiled: tuple[float, float]  # plain ops that XLA fuses
    plain: tuple[float, float]  # plain ops, one by one
    in_xla: tuple[float, float] | None = None  # the fused op in a step that XLA compiles; None if the same
    wide: bool = False  # whether plain ops are in fp32
    by_xla: tuple[float, float] = (0, 0)  # the same of this trainer on a GPU, in 16 bits

    def passes(self, work: Workload, name: str) -> tuple[float, float]:
        """Returns the passes of the workload's implementation over a tensor in its precision."""
        if name in work.fused:
            return self.in_xla if work.compiled and self.in_xla else self.fused
        if work.compiled:
            return self.by_xla if self.share(work, name) else self.compiled
        factor = 4 / work.item if self.wide else 1.0
        return factor * self.plain[0], factor * self.plain[1]

    def share(self, work: Workload, name: str) -> float:
        """Returns the share of the bandwidth that XLA's kernels of a plain op reach; 0 where they are not counted."""
        # XLA fuses a plain residual add with a plain norm.
        are_plain = not work.fused & {name, "ln" if name == "dropout_add" else name}
        return XLA_SHARE if work.runs_here and work.compiled and are_plain and work.item == 2 else 0.0


# Reads and writes of the op's tensor; the plain ones are sums over the ops of `tftrain.model`. XLA fuses a plain norm
# with the adds around it, and a fused one with nothing; it draws dropout masks beside a fused softmax.
NORM = _Op(fused=(2, 3), compiled=(2, 4), plain=(15, 24), in_xla=(4, 8), wide=True, by_xla=(4, 6))
SOFTMAX = _Op(fused=(2, 3), compiled=(3, 4), plain=(8, 9), wide=True, by_xla=(6, 4))
GELU = _Op(fused=(2, 3), compiled=(4, 8), plain=(16, 24), by_xla=(2, 3))
DROPOUT = _Op(fused=(0, 1), compiled=(4, 5), plain=(8, 6), in_xla=(3, 3), by_xla=(3.5, 3.5))
# Here the fused softmax drops probabilities itself; of plain ops, XLA writes and reads the random numbers twice.
SCORES_DROPOUT = DROPOUT._replace(in_xla=(1, 1), by_xla=(4.5, 2.5))
ADD = _Op(fused=(3, 2), compiled=(3, 2), plain=(5, 3), by_xla=(4, 5))
# XLA's kernels are planned with 0.75 of a copy's speed, as the slower fused ops have, and a copy reaches 0.885 of an
# H200's data sheet (docs/results/data/gpu_fast.csv).
XLA_SHARE = 0.66
RECOMPUTING = ("heuristics", "recomputation")
LAUNCHES = {True: (16, 32), False: (60, 90)}  # a block's launches, by whether XLA fuses its kernels


def kernels_of_block(work: Workload) -> tuple[Kernel, ...]:
    """Returns the kernels of one block on one tensor parallel rank and one micro-batch."""
    u, v, d, k, w, s = block_sizes(work)
    attention = work.model.block.attention
    wides = len(work.model.block.feed_forward.wide)
    # Keys count even if they have no bias, as when constants were fitted.
    biases = attention.output.bias * (2 * v + wides * w) + attention.query.bias * (d + 2 * k)
    kernels = [
        _kernel_of("norms", NORM, work, "ln", 2 * v + (d + k if attention.head_norm else 0)),
        _kernel_of("biases and residual adds", ADD, work, "dropout_add", 2 * v),
        _kernel("biases and transposes", (8, 10), (d + k) / 2),
        _kernel_of("scale, mask and softmax", SOFTMAX, work, "softmax", s, core=True),
        _kernel_of("gelu", GELU, work, "gelu", wides * w),
        _kernel("gradients of biases", (0, 1), biases),
        Kernel("launches", 0, 0, LAUNCHES[work.compiled]),
    ]
    if work.grappler in RECOMPUTING:  # norms and GeLU, before their gradients
        again = NORM.passes(work, "ln")[0] * 2 * u + GELU.passes(work, "gelu")[0] * wides * w
        kernels.append(Kernel("recomputed by Grappler", 0, again, (0, 0)))
    if work.attention_dropout:
        dropout = SCORES_DROPOUT if work.runs_here else DROPOUT
        kernels.append(_kernel_of("attention dropout", dropout, work, "softmax", s, core=True))
    if work.hidden_dropout:
        kernels.append(_kernel_of("hidden dropout", DROPOUT, work, "dropout_add", 2 * v))
    return tuple(kernels)


def kernels_of_embedding(work: Workload) -> tuple[Kernel, ...]:
    """Returns the kernels of the embeddings: look-ups, their sum and its norm; the table's gradient is dense."""
    stream, table = work.rows * work.seq * work.model.width * work.item, work.model.word.size / work.tp
    return _kernel("look-ups and norm", (8, 10), stream), Kernel("table's gradient", 0, 3 * work.item * table, (10, 10))


def kernels_of_head(work: Workload) -> tuple[Kernel, ...]:
    """Returns the kernels after the blocks: the logits, in fp32, of every token of a decoder, or of masked words."""
    causal = work.model.causal
    logits = logit_rows(work) * work.model.vocab / work.tp
    cross_entropy, launches = _kernel("cross-entropy", LOGIT_BYTES, logits), (10, 10) if causal else (30, 40)
    return cross_entropy._replace(launches=(1, 1) if causal else (0, 0)), Kernel("launches", 0, 0, launches)


def _kernel_of(name: str, op: _Op, work: Workload, fused: str, size: float, core: bool = False) -> Kernel:
    """Returns the kernel of an op, whose fused implementation `fused` names."""
    return _kernel(name, op.passes(work, fused), size, core)._replace(share=op.share(work, fused))


def _kernel(name: str, passes: tuple[float, float], size: float, core: bool = False) -> Kernel:
    """Returns a kernel without launches: they are counted once for the whole block."""
    return Kernel(name, passes[0] * size, passes[1] * size, (0, 0), core)
