"""Where the slices of tensors are: in which file of a checkpoint each range of each block of a tensor is.

The ranges of neighbouring ranks are mostly of equal length and follow one another, and so do the numbers of their
files. So a manifest has a few arithmetic series for each block, see `series_of`, however many ranks have written it.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tftrain.checkpoint import tensor_slice
from tftrain.checkpoint.shard import Written, in_file_order
from tftrain.checkpoint.tensor_slice import DTYPES, Shape, TensorSlice


@dataclass(frozen=True, eq=False)
class Placement(Mapping[str, Written]):
    """The files of a checkpoint, by name; the slices of a file are looked up when the file is accessed.

    A file's number is its place among the sorted names. A file has at most one slice of a tensor.
    """

    files: Mapping[str, Written]  # with the size and the digests, but without slices
    # By the name of a tensor, and by each of its blocks: file number, start and stop of each slice, int64 [slices, 3].
    tensors: Mapping[str, Mapping[TensorSlice, np.ndarray]]

    @staticmethod
    def of(files: Mapping[str, Written]) -> "Placement":
        """Returns the placement of files that have their slices.

        Raises:
            ValueError: two slices of a tensor do not agree on its dtype or shape.
        """
        tensors: dict[str, tuple[TensorSlice, dict[tuple[Shape, Shape], list[tuple[int, int, int]]]]] = {}
        for number, name in enumerate(sorted(files)):
            for piece in files[name].pieces:
                first, blocks = tensors.setdefault(piece.name, (piece, {}))
                if (piece.dtype, piece.whole) != (first.dtype, first.whole):
                    kinds = (f"{each.dtype} {list(each.whole)}" for each in (first, piece))
                    raise ValueError(f"{piece.name} is {' on one rank, and '.join(kinds)} on another")
                blocks.setdefault((piece.offset, piece.shape), []).append((number, piece.start, piece.stop))
        placed = {
            name: {
                TensorSlice.block(name, first.whole, first.dtype, *block): np.array(rows, np.int64)
                for block, rows in blocks.items()
            }
            for name, (first, blocks) in tensors.items()
        }
        return Placement({name: file._replace(pieces=()) for name, file in files.items()}, placed)

    def __getitem__(self, name: str) -> Written:
        blocks, rows = self._rows
        found = rows[rows[:, 1] == bisect.bisect_left(self._names, name)].tolist()
        pieces = in_file_order(replace(blocks[block], start=start, stop=stop) for block, _, start, stop in found)
        return self.files[name]._replace(pieces=tuple(pieces))

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def holders(self, wanted: TensorSlice) -> set[str]:
        """Returns the names of the files that have an element of a slice of one of the tensors."""
        numbers: set[int] = set()
        for block, rows in self.tensors[wanted.name].items():
            if (block.offset, block.shape) == (wanted.offset, wanted.shape):  # There may be thousands of slices.
                rows = rows[np.minimum(rows[:, 2], wanted.stop) > np.maximum(rows[:, 1], wanted.start)]
            else:
                parts = (replace(block, start=start, stop=stop) for start, stop in rows[:, 1:].tolist())
                rows = rows[[tensor_slice.overlap(part, wanted) for part in parts]]
            numbers.update(rows[:, 0].tolist())
        return {self._names[number] for number in numbers}

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.files)

    @cached_property
    def _rows(self) -> tuple[list[TensorSlice], np.ndarray]:
        """All blocks; and the number of the block, file number, start and stop of each slice, int64 [slices, 4]."""
        every = [item for blocks in self.tensors.values() for item in blocks.items()]
        numbered = [np.insert(rows, 0, number, axis=1) for number, (_, rows) in enumerate(every)]
        return [block for block, _ in every], np.concatenate([np.empty((0, 4), np.int64), *numbered])


def series_of(rows: np.ndarray) -> Iterator[list[int]]:
    """Yields series of slices in equal distances, which `rows_of` takes, given file number, start and stop of each.

    A series is [file, start, stop] of one slice, or [file, start, stop, count, file_step, step]: slice i, from 0 to
    count - 1, is the range [start + i * step, stop + i * step), and it is in file number file + i * file_step.
    """
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    # The distance to the slice before is that of a series if start and stop move alike and the file number grows.
    steps = np.diff(rows, axis=0)
    regular = (steps[:, 1] == steps[:, 2]) & (steps[:, 0] > 0)
    same = regular[1:] & (steps[1:] == steps[:-1]).all(axis=1)
    index = 0
    # Where the slices after `index` stop to continue with the distance of the first two.
    breaks = np.append(np.flatnonzero(~same), len(same))
    while index < len(rows):
        if index < len(regular) and regular[index]:
            count = int(breaks[np.searchsorted(breaks, index)]) - index + 2
            yield [*rows[index].tolist(), count, *steps[index, :2].tolist()]
        else:
            count = 1
            yield rows[index].tolist()
        index += count


def rows_of(series: Iterable[Sequence[int]]) -> np.ndarray:
    """Returns file number, start and stop of each slice of some series, int64 [slices, 3]."""
    rows = []
    for file, start, stop, *several in series:
        count, file_step, step = several or (1, 1, 0)
        rows.append((file, start, stop) + np.arange(count)[:, np.newaxis] * (file_step, step, step))
    return np.concatenate(rows)


def nbytes(placement: Placement) -> dict[str, int]:
    """Returns the bytes of the slices in each file; raises a ValueError if a file has two slices of a tensor."""
    total = np.zeros(len(placement.files), np.int64)
    for name, blocks in placement.tensors.items():
        rows = np.concatenate(list(blocks.values()))
        if len(np.unique(rows[:, 0])) != len(rows):
            raise ValueError(f"a file has two pieces of {name}")
        total[rows[:, 0]] += (rows[:, 2] - rows[:, 1]) * DTYPES[next(iter(blocks)).dtype].itemsize
    return dict(zip(sorted(placement.files), total.tolist(), strict=True))
