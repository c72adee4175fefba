"""Every element has one owner, whatever the tensors and the strategy; even parts are equal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tftrain.optim.state_layout import Partitioned, layout
from tftrain.parallel.buckets import pack

STRATEGIES = some.sampled_from(["even", "naive", "greedy:1", "greedy:2"])
SIZES = some.lists(some.integers(1, 60), min_size=1, max_size=20)


def tensors_of(sizes, kinds=None, loads=None):
    names = [f"layer_{index // 3:02d}/kernel_{index}" for index in range(len(sizes))]
    return list(map(Partitioned, names, sizes, kinds or [None] * len(sizes), loads or sizes))


@given(SIZES, some.integers(1, 6), some.integers(1, 80), STRATEGIES, some.data())
def test_slices_of_all_ranks_hold_every_element_once(sizes, ranks, limit, strategy, data):
    if strategy == "greedy:2" and ranks < 2:
        strategy = "greedy:1"
    kinds = data.draw(some.lists(some.booleans(), min_size=len(sizes), max_size=len(sizes)))
    found = dict.fromkeys(range(len(sizes)), 0)
    for bucket in layout(strategy, tensors_of(sizes, kinds), ranks, limit):
        assert len({kinds[tensor] for tensor in bucket.tensors}) == 1
        taken = [sizes[tensor] for tensor in bucket.tensors]
        assert sum(taken) <= max(limit, max(taken) + limit / 4)
        for rank in range(ranks):
            slices = bucket.slices(rank, sizes)
            assert sum(item.size for item in slices) == bucket.bounds[rank + 1] - bucket.bounds[rank] >= 1
            for item in slices:
                if item.tensor is not None:
                    found[item.tensor] += item.size
                    # By owners, tensors stay whole.
                    assert strategy == "even" or item.size == sizes[item.tensor]
    assert found == dict(enumerate(sizes))


@given(SIZES, some.integers(1, 6), some.integers(1, 80))
def test_even_parts_are_equal_and_padded_by_less_than_one_element_a_rank(sizes, ranks, limit):
    buckets = layout("even", tensors_of(sizes), ranks, limit)
    for bucket in buckets:
        assert len(set(np.diff(bucket.bounds))) == 1
        assert bucket.bounds[-1] - sum(sizes[tensor] for tensor in bucket.tensors) < ranks


NAMES = ["embeddings/word", "embeddings/norm/beta", "layer_00/kernel", "layer_01/kernel", "head/bias"]
WEIGHTS = [9, 1, 4, 4, 2]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("naive", [{0, 1, 4}, {2}, {3}]),  # four layers in turn
        ("greedy:2", [{0, 1}, {2, 3, 4}, set()]),  # 9, then 4, 4 and 2 on the other, then 1
        ("greedy:1", [{0, 1, 2, 3, 4}, set(), set()]),
    ],
)
def test_owners_of_whole_tensors(strategy, expected):
    (bucket,) = layout(strategy, list(map(Partitioned, NAMES, WEIGHTS, [None] * 5, WEIGHTS)), 3, limit=10**6)
    slices = [bucket.slices(rank, WEIGHTS) for rank in range(3)]
    assert [{each.tensor for each in own if each.tensor is not None} for own in slices] == expected


@pytest.mark.parametrize(
    ("sizes", "limit", "groups"),
    [
        ([3, 2, 9, 3, 1, 4], 5, [[0, 1], [2], [3, 4], [5]]),
        ([1, 100] * 4, 60, [[0, 1], [2, 3], [4, 5], [6, 7]]),  # small items travel with a large one
    ],
)
def test_packing_keeps_order_and_limit(sizes, limit, groups):
    assert pack(sizes, limit) == groups


@given(SIZES, some.integers(2, 4), some.data())
def test_a_tensor_has_one_owner_in_the_layouts_of_all_tensor_parallel_ranks(sizes, ranks, data):
    """The token embedding's slices may differ by a row, and its place in the order of sizes with them."""
    sliced = data.draw(some.lists(some.booleans(), min_size=len(sizes), max_size=len(sizes)))
    owners = []
    loads = [size / 2 if is_sliced else size for size, is_sliced in zip(sizes, sliced, strict=True)]
    for slice_of in (lambda size: size // 2 or 1, lambda size: size - size // 2):
        own = [slice_of(size) if is_sliced else size for size, is_sliced in zip(sizes, sliced, strict=True)]
        buckets = layout("greedy:2", tensors_of(own, sliced, loads), ranks, 50)
        owned = {
            (rank, item.tensor)
            for bucket in buckets
            for rank in range(ranks)
            for item in bucket.slices(rank, own)
            if item.tensor is not None
        }
        owners.append(owned)
    assert owners[0] == owners[1]
