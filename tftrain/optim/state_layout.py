"""How ranks partition the optimizer's state: flat buckets of tensors, of which each rank owns a shard, and its pieces.

A bucket is a concatenation of whole, flattened tensors. Each rank owns one contiguous shard of it. If a bucket is
partitioned evenly, all shards have the same length and several ranks may share a tensor. If it is partitioned by
owners, a shard holds whole tensors. Every shard has at least one element, which may be padding: so every rank is in
each collective.

This module loads no TensorFlow.
"""

import heapq
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tftrain.architecture.shard import VariableShard
from tftrain.checkpoint.tensor_slice import MASTER, TensorSlice, even_parts, renamed
from tftrain.parallel.buckets import pack

# The units of sharded weights: these, and each block.
TOKENS, EMBEDDINGS, HEADS = "embeddings/word", "embeddings", "heads"


class Slice(NamedTuple):
    """A range of the elements of one tensor."""

    tensor: int | None  # its index; None for padding
    size: int  # elements


class Bucket(NamedTuple):
    """Tensors that travel together."""

    tensors: tuple[int, ...]  # their indices
    offsets: tuple[int, ...]  # where each begins in the bucket; between them lies padding, if anything
    bounds: tuple[int, ...]  # rank r owns the elements from bounds[r] to bounds[r + 1]; the last is the bucket's size

    def range_of(self, rank: int | None) -> tuple[int, int]:
        """Returns start and stop of a rank's shard; None: of the whole bucket."""
        return (0, self.bounds[-1]) if rank is None else (self.bounds[rank], self.bounds[rank + 1])

    def owned(self, rank: int | None, sizes: Sequence[int]) -> Iterator[tuple[int, slice, slice]]:
        """Yields, for each tensor that a rank owns elements of: index, range in the rank's shard, range in the tensor.

        `sizes` are the elements of all tensors. For the rank, see `range_of`.
        """
        start, stop = self.range_of(rank)
        for tensor, offset in zip(self.tensors, self.offsets, strict=True):
            first, last = max(offset, start), min(offset + sizes[tensor], stop)
            if first < last:
                yield tensor, slice(first - start, last - start), slice(first - offset, last - offset)

    def slices(self, rank: int | None, sizes: Sequence[int]) -> list[Slice]:
        """Returns the slices of a rank's shard, in order; see `owned`."""
        position, slices = 0, []
        for tensor, range_, _ in self.owned(rank, sizes):
            if range_.start > position:
                slices.append(Slice(None, range_.start - position))
            slices.append(Slice(tensor, range_.stop - range_.start))
            position = range_.stop
        start, stop = self.range_of(rank)
        left = stop - start - position
        return [*slices, Slice(None, left)] if left else slices


class Partitioned(NamedTuple):
    """A tensor that ranks partition."""

    name: str  # such as `layer_00/attention/query/kernel`; tensors with the same first word form a layer
    size: int  # elements, at least one
    kind: Hashable  # no bucket holds tensors of two kinds
    load: float  # what `greedy:K` balances, see `partitioned`
    is_whole: bool = False  # whether one rank must own all of it, with `even` too; the same for tensors of a kind


def layout(strategy: str, tensors: Sequence[Partitioned], ranks: int, limit: int) -> list[Bucket]:
    """Partitions tensors over ranks.

    Args:
        strategy: `even`, `naive` or `greedy:K`, see `ParallelConfig.state_split_strategy`.
        tensors: from the input of the model to its output.
        ranks, limit: number of ranks that share the tensors, and elements of a bucket, see `pack`.

    Returns:
        The buckets, from the last tensor to the first, as backward makes their gradients.
    """
    groups: list[list[int]] = []
    sizes = [each.size for each in tensors]
    for kind in dict.fromkeys(each.kind for each in tensors):
        of_kind = [index for index in reversed(range(len(tensors))) if tensors[index].kind == kind]
        packed = pack([sizes[index] for index in of_kind], limit)
        groups += [[of_kind[index] for index in indices] for indices in packed]
    if strategy == "even":
        owners = _largest_first([each.load if each.is_whole else 0.0 for each in tensors], ranks)
        return [
            _by_owner(group, sizes, owners, ranks) if tensors[group[0]].is_whole else _even(group, sizes, ranks)
            for group in groups
        ]
    if strategy == "naive":
        layers = [each.name.split("/")[0] for each in tensors]
        in_order = list(dict.fromkeys(layers))
        owners = [in_order.index(layer) % ranks for layer in layers]
    else:
        owners = _largest_first([each.load for each in tensors], int(strategy.removeprefix("greedy:")))
    return [_by_owner(group, sizes, owners, ranks) for group in groups]


def _even(tensors: Sequence[int], sizes: Sequence[int], ranks: int) -> Bucket:
    *offsets, size = itertools.accumulate((sizes[tensor] for tensor in tensors), initial=0)
    shard = -(-size // ranks)
    return Bucket(tuple(tensors), tuple(offsets), tuple(shard * rank for rank in range(ranks + 1)))


def _by_owner(tensors: Sequence[int], sizes: Sequence[int], owners: Sequence[int], ranks: int) -> Bucket:
    order, offsets, bounds, position = [], [], [0], 0
    for rank in range(ranks):
        for tensor in tensors:
            if owners[tensor] == rank:
                order.append(tensor)
                offsets.append(position)
                position += sizes[tensor]
        position = max(position, bounds[-1] + 1)
        bounds.append(position)
    return Bucket(tuple(order), tuple(offsets), tuple(bounds))


def _largest_first(sizes: Sequence[float], owners: int) -> list[int]:
    loads = [(0, rank) for rank in range(owners)]
    owner_of = [0] * len(sizes)
    for tensor in sorted(range(len(sizes)), key=lambda tensor: -sizes[tensor]):
        load, rank = heapq.heappop(loads)
        owner_of[tensor] = rank
        heapq.heappush(loads, (load + sizes[tensor], rank))
    return owner_of


def unit_of(name: str) -> str:
    """Returns what is gathered together with a weight, given its global name: the unit of sharded weights."""
    first = name.split("/")[0]
    return name if name == TOKENS else first if first == EMBEDDINGS or first.startswith("layer_") else HEADS


def partitioned(
    piece: TensorSlice, dtype: Hashable, tensor_ranks: int, is_summed: bool, is_whole: bool, by_unit: bool
) -> Partitioned:
    """Returns a weight, of which a tensor parallel rank holds a piece, as data parallel ranks partition it.

    Weights of a bucket have one dtype, because they are gathered together, and `by_unit` they are of one unit. They are
    all partitioned over the tensor parallel ranks or all whole, because their squares are added together; and of those
    that are whole, the gradients of all or of none are summed over these ranks. Those that a rank must own whole,
    `is_whole`, have buckets of their own.

    The load is the number of elements, of a sharded weight that of an average shard. Shards may differ in size by a
    row, but the loads are the same on every tensor parallel rank, and so is the owner of a weight.
    """
    kind = unit_of(piece.name) if by_unit else "", piece.is_divided, dtype, is_summed, is_whole
    load = math.prod(piece.whole) / (tensor_ranks if piece.is_divided else 1)
    return Partitioned(piece.name, piece.size, kind, load, is_whole)


def slice_of(shard: VariableShard) -> TensorSlice:
    """Returns the piece of a checkpoint's tensor that a shard of a variable is, fp32."""
    return TensorSlice.block(shard.name, shard.whole, "F32", shard.offset, shard.shape, replica_id=shard.replica)


class Held(NamedTuple):
    """A piece that a rank holds."""

    piece: TensorSlice  # its tensor is `KIND/NAME`
    kind: str  # `master`, or the name of a slot
    store: int  # index of the variable of this kind that holds it, see `OptimizerState`
    elements: slice  # where the piece is among the elements of that variable


def held_pieces(
    pieces: Mapping[str, TensorSlice], slots: Mapping[str, Sequence[str]], buckets: Sequence[Bucket] | None, rank: int
) -> Iterator[Held]:
    """Yields every piece that a rank holds, in the order of kinds and stores.

    Args:
        pieces, slots: by name, the piece of the whole tensor that a variable of the model holds, and the rule's slots.
        buckets, rank: by which the data parallel ranks partition the state; None: each holds all of it; and this rank.
    """
    sizes = [piece.size for piece in pieces.values()]
    for kind in dict.fromkeys([MASTER, *itertools.chain.from_iterable(slots.values())]):
        of_kind = {number: each for number, each in enumerate(pieces) if kind in (MASTER, *slots[each])}
        if buckets is None:
            every = ((number, renamed(pieces[name], kind)) for number, name in of_kind.items() if sizes[number])
            yield from (Held(piece, kind, number, slice(None)) for number, piece in every)
            continue
        for number, bucket in enumerate(buckets):
            for index, in_store, in_tensor in bucket.owned(rank, sizes):
                if index in of_kind:
                    part = pieces[of_kind[index]].part(in_tensor.start, in_tensor.stop)
                    yield Held(renamed(part, kind), kind, number, in_store)


def saved_pieces(held: Iterable[Held], copy: int, copies: int) -> Iterator[Held]:
    """Yields those of a rank's pieces that it saves; all ranks together save each element of each tensor once.

    The ranks that hold the same pieces, of which this is one of `copies`, share them evenly.
    """
    held = [each for each in held if each.piece.replica_id == 0]
    for index, start, stop in even_parts([each.piece for each in held], copies, copy):
        piece = held[index]
        first = piece.elements.start or 0
        yield piece._replace(piece=piece.piece.part(start, stop), elements=slice(first + start, first + stop))
