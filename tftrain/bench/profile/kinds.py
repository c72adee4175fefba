"""Assigns each operation of the compiled step to a part of the model, by its name and type.

Names contain the scopes of the layers, such as `.../block_3/feed_forward_3/Sigmoid`; names of backward have
`gradient_tape/` before them. Types are those of the kernels that ran, so a product fused with its bias is one product.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

OTHER = "other"
OPTIMIZER = "optimizer"
MODEL_SCOPE = re.compile(r"/block(_\d+)?/")
CALLS = re.compile(r"(Stateful)?PartitionedCall|While|If|SymbolicGradient|_Retval|_Arg")

# The first match counts: a kind, a pattern of the type, and a pattern of the path.
RULES = tuple(
    (kind, re.compile(kernel), re.compile(path))
    for kind, kernel, path in (
        ("LayerNorm", "TftrainLayerNorm|TftrainRmsNorm", ""),
        ("softmax, with its dropout", "TftrainAttentionSoftmax", ""),
        ("attention core", "TftrainFlashAttention", ""),
        ("GeLU", "TftrainGelu|TftrainGeglu|TftrainSwiglu", ""),
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
    """Parses a profiler's event, `path:type`; returns None for an event that is no operation or only calls others."""
    path, colon, kernel = event.rpartition(":")
    if not colon or path.endswith(":") or not kernel.isidentifier() or CALLS.fullmatch(kernel):
        return None
    return Op(path, kernel)


def update_scopes(ops: Iterable[Op]) -> set[str]:
    """Returns the outermost scopes of the optimizer's compiled update; these scopes contain no operation of the model.

    Gradients and update are separate functions, and the names of a function's operations begin with that of its call.
    """
    scopes: dict[str, bool] = {}
    for op in ops:
        first, slash, _ = op.path.partition("/")
        if slash and "PartitionedCall" in first:
            scopes[first] = scopes.get(first, False) or bool(MODEL_SCOPE.search(op.path))
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
