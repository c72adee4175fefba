"""Where the slices of tensors are: a few arithmetic series for each tensor, however many ranks have written it.

Thousands of ranks divide a state into millions of slices. The ranges of neighbouring ranks are equally long and
follow one another, and so do the numbers of their files. So one series describes them all: a manifest grows by an entry
for each file and each series, and a rank looks up only the slices that it needs.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tftrain.checkpoint import tensor_slice
from tftrain.checkpoint.shard import Written, in_file_order
from tftrain.checkpoint.tensor_slice import DTYPES, Shape, TensorSlice


class SliceSeries(NamedTuple):
    """Slices of one block of a tensor in equal distances.

    Slice i, from 0 to count - 1, is the range [start + i * step, stop + i * step) of the block, and it is in file
    number file + i * file_step.
    """

    file: int
    start: int
    stop: int
    count: int = 1
    file_step: int = 1
    step: int = 0


class SlicedBlock(NamedTuple):
    """The slices of one block of a tensor; offset and shape are those of `TensorSlice`."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    series: tuple[SliceSeries, ...]

    def expanded(self) -> np.ndarray:
        """Returns file number, start and stop of each slice, int64 [slices, 3]."""
        rows = []
        for series in self.series:
            steps = np.arange(series.count)[:, np.newaxis] * (series.file_step, series.step, series.step)
            rows.append(series[:3] + steps)
        return np.concatenate(rows)

    def ranges(self) -> np.ndarray:
        """Returns start and stop of each slice, int64 [slices, 2]; of the whole block, if the slices are a chain."""
        end = 0
        for series in sorted(self.series, key=lambda series: series.start):
            if series.start != end or (series.count > 1 and series.step != series.stop - series.start):
                return self.expanded()[:, 1:]
            end = series.stop + (series.count - 1) * series.step
        return np.array([[0, end]], np.int64)


class SlicedTensor(NamedTuple):
    """A tensor and its slices; dtype and shape are those of the whole tensor."""

    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[SlicedBlock, ...]


@dataclass(frozen=True)
class Placement(Mapping[str, Written]):
    """The files of a checkpoint, by name; the slices of a file are looked up when the file is accessed.

    A file's number is its place among the sorted names. A file has at most one slice of a tensor.
    """

    files: Mapping[str, Written]  # with the size and the digests, but without slices
    tensors: Mapping[str, SlicedTensor]

    @staticmethod
    def of(files: Mapping[str, Written]) -> "Placement":
        """Returns the placement of files that have their slices."""
        rows = SliceCollector()
        for number, name in enumerate(sorted(files)):
            rows.add(number, *columns(files[name].pieces))
        return Placement({name: file._replace(pieces=()) for name, file in files.items()}, rows.tensors())

    def __getitem__(self, name: str) -> Written:
        return self.files[name]._replace(pieces=tuple(in_file_order(self._pieces_in(name))))

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def holders(self, wanted: TensorSlice) -> set[str]:
        """Returns the names of the files that have an element of a slice of one of the tensors."""
        numbers: set[int] = set()
        if not wanted.size:
            return set()
        for block in self.tensors[wanted.name].blocks:
            if (block.offset, block.shape) == (wanted.offset, wanted.shape):
                rows = block.expanded()
                numbers.update(rows[(rows[:, 1] < wanted.stop) & (rows[:, 2] > wanted.start), 0].tolist())
            else:
                numbers.update(self._holders_in(block, wanted))
        return {self._names[number] for number in numbers}

    def _holders_in(self, block: SlicedBlock, wanted: TensorSlice) -> Iterator[int]:
        """Yields the numbers of the files with elements of a slice of another block."""
        rows = block.expanded()
        # The elements of a slice lie between its first and its last one in the whole tensor.
        first, last = _flat(wanted.whole, block.offset, block.shape, rows[:, 1:].T - [[0], [1]])
        low, high = _flat(wanted.whole, wanted.offset, wanted.shape, np.array([wanted.start, wanted.stop - 1]))
        for file, start, stop in rows[(first <= high) & (last >= low)].tolist():
            stored = TensorSlice(wanted.name, wanted.whole, wanted.dtype, block.offset, block.shape, start, stop)
            if tensor_slice.overlap(stored, wanted):
                yield file

    def _pieces_in(self, name: str) -> Iterator[TensorSlice]:
        number, (rows, owners) = bisect.bisect_left(self._names, name), self._series
        distance = number - rows[:, 0]
        hits = (distance >= 0) & (distance <= (rows[:, 1] - 1) * rows[:, 2]) & (distance % rows[:, 2] == 0)
        for index in np.flatnonzero(hits).tolist():
            tensor, block, series = owners[index]
            shift = int(distance[index]) // series.file_step * series.step
            dtype, whole = self.tensors[tensor].dtype, self.tensors[tensor].shape
            yield TensorSlice(
                tensor, whole, dtype, block.offset, block.shape, series.start + shift, series.stop + shift
            )

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.files)

    @cached_property
    def _series(self) -> tuple[np.ndarray, list[tuple[str, SlicedBlock, SliceSeries]]]:
        """First file, count and step of the file numbers of each series, int64 [series, 3], and where it belongs."""
        owners = [
            (name, block, series)
            for name, tensor in self.tensors.items()
            for block in tensor.blocks
            for series in block.series
        ]
        rows = [(series.file, series.count, series.file_step) for _, _, series in owners]
        return np.array(rows, np.int64).reshape(-1, 3), owners


class BlockKey(NamedTuple):
    """A block of a tensor: name, dtype and shape of the tensor, and offset and shape of the block."""

    name: str
    dtype: str
    whole: Shape
    offset: Shape
    shape: Shape


def columns(pieces: Sequence[TensorSlice]) -> tuple[list[BlockKey], list[int], list[int]]:
    """Returns the arguments of `SliceCollector.add` for slices in a file."""
    places = [BlockKey(each.name, each.dtype, each.whole, each.offset, each.shape) for each in pieces]
    return places, [each.start for each in pieces], [each.stop for each in pieces]


class SliceCollector:
    """Collects slices and makes series of them; a slice takes 32 bytes."""

    def __init__(self):
        self._numbers: dict[BlockKey, int] = {}
        self._rows: list[np.ndarray] = []

    def add(self, file: int, places: Sequence[BlockKey], starts: Sequence[int], stops: Sequence[int]) -> None:
        """Adds slices in a file of this number, of one block after the other, and start and stop of each range."""
        rows = np.empty((len(places), 4), np.int64)
        rows[:, 0] = [self._numbers.setdefault(place, len(self._numbers)) for place in places]
        rows[:, 1], rows[:, 2], rows[:, 3] = file, starts, stops
        self._rows.append(rows)

    def tensors(self, numbers: np.ndarray | None = None) -> dict[str, SlicedTensor]:
        """Returns all slices as series, by tensor.

        Args:
            numbers: by the number of a file, the one that it has instead; None: the same.

        Raises:
            ValueError: two slices of a tensor do not agree on its dtype or shape.
        """
        rows = np.concatenate([np.empty((0, 4), np.int64), *self._rows])
        if numbers is not None:
            rows[:, 1] = numbers[rows[:, 1]]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        bounds = np.searchsorted(rows[:, 0], np.arange(len(self._numbers) + 1)).tolist()
        tensors: dict[str, SlicedTensor] = {}
        for stored, number in self._numbers.items():
            block = SlicedBlock(
                stored.offset, stored.shape, tuple(series_of(rows[bounds[number] : bounds[number + 1], 1:]))
            )
            tensor = tensors.setdefault(stored.name, SlicedTensor(stored.dtype, stored.whole, ()))
            if tensor[:2] != (stored.dtype, stored.whole):
                difference = f"{tensor.dtype} {list(tensor.shape)} on one rank, and {stored.dtype} {list(stored.whole)}"
                raise ValueError(f"{stored.name} is {difference} on another")
            tensors[stored.name] = tensor._replace(blocks=(*tensor.blocks, block))
        return tensors


def series_of(rows: np.ndarray) -> Iterator[SliceSeries]:
    """Yields the series of slices of one block: file number, start and stop of each, int64 [slices, 3]."""
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    # The distance to the slice before is that of a series if start and stop move alike and the file number grows.
    steps = np.diff(rows, axis=0)
    regular = (steps[:, 1] == steps[:, 2]) & (steps[:, 0] > 0)
    same = regular[1:] & (steps[1:] == steps[:-1]).all(axis=1)
    index = 0
    # Where the slices after `index` stop to continue with the distance of the first two.
    breaks = np.append(np.flatnonzero(~same), len(same))
    while index < len(rows):
        file, start, stop = rows[index].tolist()
        if index < len(regular) and regular[index]:
            count = int(breaks[np.searchsorted(breaks, index)]) - index + 2
            yield SliceSeries(file, start, stop, count, int(steps[index, 0]), int(steps[index, 1]))
        else:
            count = 1
            yield SliceSeries(file, start, stop)
        index += count


def _flat(whole: Sequence[int], offset: Sequence[int], shape: Sequence[int], elements: np.ndarray) -> np.ndarray:
    """Returns the place in a whole tensor, row-major, of elements of a block, given their places in the block."""
    if not shape:
        return elements
    places = zip(np.unravel_index(elements, shape), offset, strict=True)
    return np.ravel_multi_index([place + begin for place, begin in places], whole)


def nbytes(placement: Placement) -> dict[str, int]:
    """Returns the bytes of the slices in each file; raises a ValueError if a file has two slices of a tensor."""
    total = np.zeros(len(placement.files), np.int64)
    for name, tensor in placement.tensors.items():
        end, are_apart, width = 0, True, DTYPES[tensor.dtype].itemsize
        for series in sorted(series for block in tensor.blocks for series in block.series):
            last = series.file + (series.count - 1) * series.file_step
            total[series.file : last + 1 : series.file_step] += (series.stop - series.start) * width
            are_apart &= series.file >= end
            end = max(end, last + 1)
        # Series of tensor parallel ranks lie between each other.
        if not are_apart:
            files = np.concatenate([block.expanded()[:, 0] for block in tensor.blocks])
            if len(np.unique(files)) != len(files):
                raise ValueError(f"a file has two pieces of {name}")
    return dict(zip(sorted(placement.files), total.tolist(), strict=True))
