"""Which part of the model an operation of the compiled step belongs to, told from its name and type.

Names carry the layers' scopes, such as `.../block_3/feed_forward_3/Sigmoid`, and those of backward the same behind
`gradient_tape/`. Types are the kernels' that ran, so a product that was fused with its bias is one product.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

OTHER = "other"
OPTIMIZER = "optimizer"
MODEL_SCOPE = "bert_pretrainer"
CALLS = re.compile(r"(Stateful)?PartitionedCall|While|If|SymbolicGradient|_Retval|_Arg")

# The first that fits counts: a kind, what the type must look like, and what the path must look like.
RULES = tuple(
    (kind, re.compile(kernel), re.compile(path))
    for kind, kernel, path in (
        ("LayerNorm", "TftrainLayerNorm", ""),
        ("softmax, with its dropout", "TftrainAttentionSoftmax", ""),
        ("GeLU", "TftrainGelu|TftrainGeglu", ""),
        ("dropout and random numbers", "TftrainBiasDropoutAdd", ""),
        ("matrix products", "MatMul|Einsum", ""),
        ("loss", "CrossEntropy|ArgMax", ""),
        ("loss", "", "CrossEntropy"),
        ("casts", "Cast", ""),
        ("transposes", "Transpose", ""),
        ("softmax", "Softmax", ""),
        ("softmax", "", r"gradient_tape/.*self_attention(_\d+)?/(mul|mul_1|sub|Sum)$"),
        ("dropout and random numbers", "Random|Bitcast|GreaterEqual", ""),
        ("LayerNorm", "", r"layer_norm"),
        ("bias gradients", "BiasAddGrad", ""),
        ("GeLU", "", r"feed_forward(_\d+)?/[^/]*$|gradient_tape/.*feed_forward(_\d+)?/(?!dense)"),
        ("dropout and random numbers", "Mul|Select|StridedSlice", r"/(block|self_attention|embedding)(_\d+)?/"),
        ("residual adds and gradient sums", "Add|AddN|Sub", ""),
        ("embedding lookups", "Gather|UnsortedSegmentSum|Scatter", ""),
    )
)


class Op(NamedTuple):
    """An operation that ran.

    Attributes:
        path: its name, scopes and all.
        kernel: its type.
    """

    path: str
    kernel: str


def parse(event: str) -> Op | None:
    """Returns the operation of a profiler's event, `path:type`; None for events that are none, or only call others."""
    path, colon, kernel = event.rpartition(":")
    if not colon or path.endswith(":") or not kernel.isidentifier() or CALLS.fullmatch(kernel):
        return None
    return Op(path, kernel)


def update_scopes(ops: Iterable[Op]) -> set[str]:
    """Returns the first scopes in which nothing of the model runs: the calls of the optimizer's compiled update.

    Gradients and update are functions of their own, and each has its call's name before the names of all of its ops.
    """
    scopes: dict[str, bool] = {}
    for op in ops:
        first, slash, _ = op.path.partition("/")
        if slash and "PartitionedCall" in first:
            scopes[first] = scopes.get(first, False) or MODEL_SCOPE in op.path
    return {scope for scope, has_model in scopes.items() if not has_model}


def kind_of(op: Op, update: set[str]) -> str:
    """Returns the kind of an operation.

    Args:
        op: one of the step.
        update: see `update_scopes`.
    """
    if op.path.partition("/")[0] in update:
        return OPTIMIZER
    return next((kind for kind, kernel, path in RULES if kernel.search(op.kernel) and path.search(op.path)), OTHER)
