"""The floating point operations of a step: its matrix products, counted exactly, a multiply and an add as two.

Everything else (norms, softmax, GeLU, dropout, look-ups, the optimizer) is not counted, as in the TFLOPs of training
logs. Recomputation is not counted either: it is the cost of a lever, not work of the model.
"""

from typing import NamedTuple

from tftrain.architecture.architecture import Architecture
from tftrain.architecture.parts import DenseSpec


class ForwardFlops(NamedTuple):
    """Operations of one forward pass over one sample; the fields add up to `total`."""

    blocks: int  # the products of all layers
    heads: int  # those of the dense layers after them, with the output layer

    @property
    def total(self) -> int:
        """All matrix products."""
        return sum(self)


def kernels_of_block(model: Architecture) -> list[tuple[int, int]]:
    """Returns the shapes of the kernels of a block, [inputs, outputs]."""
    return [each.shape for each in model.block.variables("") if each.is_hidden_matrix]


def forward(model: Architecture, tokens: int, predictions: int) -> ForwardFlops:
    """Counts the matrix products of one forward pass over one sample.

    A BERT of L layers, H = hidden_size, I = feed_forward_size, S tokens, P masked positions and V words has
    L * (8 S H^2 + 4 S^2 H + 4 S H I) + 2 H^2 + 4 H + 2 P H (H + V); with GeGLU 6 S H I instead of 4 S H I. A causal
    mask saves nothing: the products are those of whole matrices. A window of W tokens to each side makes 4 S^2 H to
    4 S (2 W + 1) H.

    Args:
        tokens: of a sample, S.
        predictions: masked positions of a sample, P, with padding, which is computed too; a decoder predicts every
            token.
    """
    dense = sum(_product(tokens, leaf) for _, leaf in model.block.parts() if isinstance(leaf, DenseSpec))
    # Scores and weighted values of all layers.
    attention = round(model.layers * model.keys(tokens)) * 2 * 2 * tokens * model.block.attention.query.outputs
    heads = sum(_product(rows, leaf) for _, rows, leaf in layers_of_heads(model, tokens, predictions))
    return ForwardFlops(model.layers * dense + attention, heads)


def layers_of_heads(model: Architecture, tokens: int, predictions: int) -> list[tuple[str, int, DenseSpec]]:
    """Returns the dense layers after the blocks: name, rows of a sample that it reads, and layer; see `forward`."""
    rows = {"predictions": tokens if model.causal else predictions, "sample": 1, "tokens": tokens}
    leaves = [(name or head.name, rows[head.rows], leaf) for head in model.heads for name, leaf in head.leaves]
    layers = [each for each in leaves if isinstance(each[-1], DenseSpec)]
    if model.tied or model.output:  # It reads what the first head, if there is one, makes of the masked words.
        layers.insert(1, ("logits", rows["predictions"], DenseSpec(model.width, model.vocab, divided="outputs")))
    return layers


def _product(rows: int, dense: DenseSpec) -> int:
    return 2 * rows * dense.inputs * dense.outputs


def head_in_layers(model: Architecture, tokens: int, predictions: int) -> float:
    """Returns the operations of the heads and the output layer over those of one layer, see `forward`."""
    operations = forward(model, tokens, predictions)
    return operations.heads / operations.blocks * model.layers


def step(model: Architecture, tokens: int, predictions: int, samples: int) -> int:
    """Returns the operations of a training step: 3 x forward, as each product has two in the backward pass.

    `samples` is the number of samples of the step, such as the global batch. For the other arguments, see `forward`.
    """
    return 3 * samples * forward(model, tokens, predictions).total
