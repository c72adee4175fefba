"""Packs examples of different lengths into rows of one length, so that few positions are padding.

The rows are made from the histogram of the lengths, as in Krell et al., "Efficient Sequence Packing without
Cross-contamination" (arXiv 2107.02027, section 3): equal rows are one group with a count. So the time to decide depends
on the number of different lengths, and hardly on the number of examples.

The paper's rules put each example into a row that is begun, the longest examples first. If a row may have few examples,
they use up the medium lengths in pairs, and the short ones are left. The rule here fills one row after the other. It
begins a row with the longest example that is left, and decides how many examples the row shall have: as many as the
rest needs on average. These share the free positions evenly, and the last one is the longest that fits.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

import numpy as np

# How far the average may be above a whole number before a row gets one example more. All are tried.
_SLACKS = (0.0, 0.1, 0.5)
_Group = tuple[tuple[int, ...], int]  # the lengths of a row's examples, and the number of such rows


def pack(lengths: np.ndarray, row_length: int, most: int) -> np.ndarray:
    """Divides examples into rows of `row_length` tokens and at most `most` examples.

    Args:
        lengths: integers [n], tokens of each example, from 1 to `row_length`; n is below 2^31.

    Returns:
        int32 [rows, most]: the examples of each row, then -1 in places without one. Every example occurs once; of
        those with equal lengths, the first ones come in the first rows. The same arguments give the same rows.

    Raises:
        ValueError: an example is empty or longer than a row, or `most` is less than 1.
    """
    # The stable sort of 16 bits is a radix sort.
    lengths = lengths.astype(np.uint16 if row_length < 1 << 16 else np.int64, copy=False)
    counts = np.bincount(lengths, minlength=row_length + 1)
    groups = _best_groups(counts.tolist(), row_length, most)
    by_length = np.argsort(lengths, kind="stable")
    taken = (np.cumsum(counts) - counts).tolist()  # where the unused examples of each length begin in `by_length`
    places = np.full([most, _rows(groups)], -1, np.int32)
    begin = 0
    for in_row, count in groups:
        for column, length in enumerate(in_row):
            first = taken[length]
            taken[length] = first + count
            places[column, begin : begin + count] = by_length[first : first + count]
        begin += count
    return places.T


def row_count(counts: Sequence[int], row_length: int, most: int) -> int:
    """Returns the number of rows that `pack` makes of examples of which there are `counts[length]` of each length."""
    return _rows(_best_groups(counts, row_length, most))


def _best_groups(counts: Sequence[int], row_length: int, most: int) -> list[_Group]:
    return min((_groups(counts, row_length, most, slack) for slack in _SLACKS), key=_rows)


def _rows(groups: list[_Group]) -> int:
    return sum(count for _, count in groups)


def _groups(counts: Sequence[int], row_length: int, most: int, slack: float) -> list[_Group]:
    """Returns the rows for examples of which there are `counts[length]` of each length, as groups of equal rows."""
    left = Counter({length: count for length, count in enumerate(counts) if count})
    remaining = sorted(left)  # the lengths in `left`
    groups: list[_Group] = []
    while remaining:
        tokens = sum(length * count for length, count in left.items())
        row = _row(left, remaining, row_length, most, math.ceil(left.total() * row_length / tokens - slack))
        in_row = Counter(row)
        count = min(left[length] // times for length, times in in_row.items())
        groups.append((row, count))
        for length, times in in_row.items():
            left[length] -= count * times
            if not left[length]:
                remaining.remove(length)
    return groups


def _row(left: Counter, remaining: Sequence[int], row_length: int, most: int, wanted: int) -> tuple[int, ...]:
    """Returns the lengths of the next row's examples: the longest one that is left, and what fits beside it.

    Args:
        left: number of the examples of each length.
        remaining: the lengths that `left` has, ascending.
        wanted: how many examples share the free positions evenly; if some are left, more follow.
    """
    row, free = [remaining[-1]], row_length - remaining[-1]
    while len(row) < most:
        for part in (free // max(wanted - len(row), 1), free):
            index = bisect_right(remaining, part) - 1
            while index >= 0 and left[remaining[index]] <= row.count(remaining[index]):
                index -= 1
            if index >= 0:
                break
        else:
            break
        row.append(remaining[index])
        free -= remaining[index]
    return tuple(row)
