"""Which pieces of the training state a rank holds, and which of them it saves.

The optimizer's state and the simulation of large runs both ask this module, which loads no TensorFlow.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tftrain.checkpoint.piece import MASTER, Piece, even_parts, renamed
from tftrain.optim.state_buckets import Bucket


class Held(NamedTuple):
    """A piece that a rank holds."""

    piece: Piece  # of the tensor `KIND/NAME`
    kind: str  # `master`, or the name of a slot
    store: int  # index of the variable of this kind that holds it, see `OptimizerState`
    stretch: slice  # where the piece is among the elements of that variable


def bucket_kinds(
    pieces: Sequence[Piece], dtypes: Sequence[Hashable], is_summed: Sequence[bool] | None = None
) -> list[Hashable]:
    """Returns the kind of each weight; a bucket holds weights of one kind.

    Those of a bucket have one dtype, because they are gathered together. They are all divided among the tensor parallel
    ranks or all whole, because their squares are added together; and of those that are whole, the gradients of all or
    of none are summed over these ranks.
    """
    is_summed = is_summed or [False] * len(pieces)
    together = zip(pieces, dtypes, is_summed, strict=True)
    return [(piece.is_divided, dtype, summed) for piece, dtype, summed in together]


def bucket_loads(pieces: Sequence[Piece], tensor_ranks: int) -> list[float]:
    """Returns what `greedy:K` balances, for each weight: its elements, of divided ones those of an average slice.

    Slices may differ in size by a row, but the loads are the same on every tensor parallel rank.
    """
    return [math.prod(piece.whole) / (tensor_ranks if piece.is_divided else 1) for piece in pieces]


class StateLayout:
    """The pieces of one rank."""

    def __init__(
        self, pieces: Mapping[str, Piece], slots: Sequence[str], buckets: Sequence[Bucket] | None, rank: int, ranks: int
    ):
        """Divides nothing yet.

        Args:
            pieces, slots: by name, the piece of the whole tensor that the model's variable holds; of the update rule.
            buckets: by which the data parallel ranks divide the state; None: each of them holds all of it.
            rank, ranks: of the data parallel ranks: this one, and their number.
        """
        self._pieces, self._kinds, self._buckets = list(pieces.values()), (MASTER, *slots), buckets
        self._rank, self._ranks = rank, ranks
        self._sizes = [piece.size for piece in self._pieces]

    def held(self) -> Iterator[Held]:
        """Yields every piece on this rank, in the order of kinds and stores."""
        for kind in self._kinds:
            if self._buckets is None:
                for index, piece in enumerate(self._pieces):
                    if piece.size:
                        yield Held(renamed(piece, kind), kind, index, slice(None))
                continue
            for number, bucket in enumerate(self._buckets):
                for index, in_store, in_tensor in bucket.owned(self._rank, self._sizes):
                    part = self._pieces[index].part(in_tensor.start, in_tensor.stop)
                    yield Held(renamed(part, kind), kind, number, in_store)

    def saved(self) -> Iterator[Held]:
        """Yields the pieces that this rank saves; all ranks together save each element of each tensor once.

        Ranks that hold the same pieces divide them evenly.
        """
        held = [each for each in self.held() if each.piece.replica_id == 0]
        rank, ranks = (self._rank, self._ranks) if self._buckets is None else (0, 1)
        for index, start, stop in even_parts([each.piece for each in held], ranks, rank):
            each = held[index]
            first = each.stretch.start or 0
            yield each._replace(piece=each.piece.part(start, stop), stretch=slice(first + start, first + stop))
