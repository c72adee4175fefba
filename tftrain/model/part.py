"""The part of a model that one rank holds: all of it, or the layers of its pipeline stages."""

from typing import NamedTuple


class ModelPart(NamedTuple):
    """Some of the layers of a model.

    Attributes:
        blocks: indices of the transformer blocks, ascending.
        embedding: whether the part maps token ids to vectors.
        heads: whether the part computes predictions and losses.
    """

    blocks: tuple[int, ...]
    embedding: bool = True
    heads: bool = True


def whole(layers: int) -> ModelPart:
    """Returns the part that is the whole model of so many blocks."""
    return ModelPart(tuple(range(layers)))
