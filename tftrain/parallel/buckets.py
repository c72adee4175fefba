"""Packs tensors into buckets; each bucket is one collective."""

from collections.abc import Sequence


def pack(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Packs items, in order, into few groups of about `limit`. Returns indices.

    An item that does not fit begins a new group, unless the present group has less than a quarter of `limit`. So the
    biases between two large kernels travel with a kernel and not alone, and a group has at most its largest item and a
    quarter of `limit`, or `limit`.
    """
    groups: list[list[int]] = []
    filled = 0
    for number, size in enumerate(sizes):
        if not groups or (filled + size > limit and 4 * filled >= limit):
            groups.append([])
            filled = 0
        groups[-1].append(number)
        filled += size
    return groups
