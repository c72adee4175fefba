"""The part of a model that one rank holds: all of it, or the layers of its pipeline stages."""

from collections.abc import Iterable
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

    @property
    def shares_table(self) -> bool:
        """Whether another part also has the word embedding, which is the output layer too."""
        return self.embedding != self.heads

    @property
    def table_replica(self) -> int:
        """Number of this part's copy of the word embedding; copy 0 is the one of the part with the embedding."""
        return 0 if self.embedding else 1


def whole(layers: int) -> ModelPart:
    """Returns the part that is the whole model of so many blocks."""
    return ModelPart(tuple(range(layers)))


def joined(parts: Iterable[ModelPart]) -> ModelPart:
    """Returns the part that holds the layers of several parts."""
    parts = list(parts)
    blocks = sorted(block for part in parts for block in part.blocks)
    return ModelPart(tuple(blocks), any(part.embedding for part in parts), any(part.heads for part in parts))
