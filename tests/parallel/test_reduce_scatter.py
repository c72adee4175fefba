"""Each owner receives the sum of its part, right to the last bit; more ranks need no more memory."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.parallel.simulated_ranks import SimulatedRanks
from tftrain.optim import state_split
from tftrain.optim.state_layout import Partitioned
from tftrain.optim.state_split import StateSplit
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group
from tftrain.parallel.pending_collectives import PendingCollectives


def draws(ranks, length):
    return np.random.default_rng(5).normal(size=[ranks, length]).astype(np.float32)


def in_rank_order(every):
    total = every[0].astype(np.float32)
    for one in every[1:]:
        total = total + one.astype(np.float32)
    return total


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "bounds",
    [
        *((0, 4, 8, 12, 16, 20), (0, 1, 2, 18, 19, 20), (0, 0, 0, 0, 0, 23), (0, 23, 23, 23, 23, 23)),
        *((0, 3, 9, 9, 10, 17), (0, 1, 1, 2, 2, 3)),
    ],
)
def test_every_owner_has_the_bits_of_the_sum_in_rank_order(monkeypatch, bounds, dtype):
    ranks, given = SimulatedRanks(5, monkeypatch), draws(5, bounds[-1]).astype(dtype)
    parts = ranks.run(
        lambda group: collectives.reduce_scatter_sum(group, tf.constant(given[group.rank]), bounds, "x").numpy()
    )
    expected = in_rank_order(given)
    for rank, part in enumerate(parts):
        assert part.dtype == np.float32
        np.testing.assert_array_equal(part, expected[bounds[rank] : bounds[rank + 1]])


@pytest.mark.parametrize("strategy", ["even", "naive", "greedy:2"])
def test_no_rank_receives_more_than_a_bucket_at_once(monkeypatch, strategy):
    monkeypatch.setattr(state_split, "BUCKET_BYTES", 400)
    ranks = SimulatedRanks(6, monkeypatch)
    shapes = {"embeddings/word": [500], "layer_00/kernel": [60], "layer_00/bias": [7]}
    given = {name: draws(6, shape[0]) for name, shape in shapes.items()}

    def reduce(group):
        tensors = [Partitioned(name, shape[0], None, shape[0]) for name, shape in shapes.items()]
        split = StateSplit(group, tensors, list(shapes.values()), strategy)
        tensors = [tf.constant(every[group.rank]) for every in given.values()]
        parts = split.reduce_all(tensors, "x", tf.float32)
        whole = {}
        for bucket, part in zip(split.buckets, parts, strict=True):
            for index, in_part, in_tensor in bucket.owned(group.rank, [math.prod(shape) for shape in shapes.values()]):
                whole[list(shapes)[index], in_tensor.start] = part[in_part].numpy()
        return whole

    found = {key: part for whole in ranks.run(reduce) for key, part in whole.items()}
    for name, every in given.items():
        joined = np.concatenate([part for (owner, _), part in sorted(found.items()) if owner == name])
        np.testing.assert_array_equal(joined, in_rank_order(every))
    # Owners of nothing own an element of padding, and equal parts are rounded up.
    assert max(size for sizes in ranks.received for size in sizes) <= 500 + 2 * ranks.size


def test_owner_of_a_kernel_holds_no_copies_of_all_ranks():
    """A 3072 x 12288 kernel and 64 ranks; nothing runs, only the shapes in the graph are added up."""
    length, size = 3072 * 12288, 64
    bounds = (0, *range(length, length + size))
    group = Group("data", tuple(range(size)), 0, pending=PendingCollectives())

    @tf.function(input_signature=[tf.TensorSpec([bounds[-1]])], autograph=False)
    def scatter(tensor):
        return collectives.reduce_scatter_sum(group, tensor, bounds, "x")

    operations = scatter.get_concrete_function().graph.get_operations()
    shapes = [output.shape for op in operations for output in op.outputs]
    assert max(shape.num_elements() or 0 for shape in shapes) == bounds[-1]
    exchanges = [op for op in operations if op.type == "HorovodAlltoall"]
    received = [tf.get_static_value(op.inputs[1]) for op in exchanges]
    # This rank sends an equal part to every rank, and then its sum to the owner.
    np.testing.assert_allclose(received[0], bounds[-1] / size, atol=1)
    assert received[1].tolist() == [bounds[-1] // size, *[0] * (size - 1)]


def test_sums_in_rank_order_do_not_depend_on_the_order_of_an_all_reduce(monkeypatch):
    given, found = draws(5, 100), []
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        ranks = SimulatedRanks(5, monkeypatch, order)
        found += ranks.run(lambda group: collectives.sum_in_rank_order(group, tf.constant(given[group.rank]), "x"))
    for each in found:
        np.testing.assert_array_equal(each, in_rank_order(given))
