"""Looked-up rows add up to the dense gradient, and no op adds two rows at one place in an order of its own."""

import numpy as np
import pytest
import tensorflow as tf

from tftrain.parallel.gradient_reduction import GradientReduction
from tftrain.parallel.mesh import Group
from tftrain.parallel.sparse_rows import SparseRows, add_up

WIDTH, ROWS = 3, 12
# On a GPU these add up elements of one place by atomic operations.
ATOMIC = ("SegmentSum", "UnsortedSegmentSum", "SparseSegmentSum", "ResourceScatterAdd", "ScatterNd", "Bincount")
IDS = {
    "none": [],
    "one": [7],
    "each once": [3, 11, 0, 5],
    "all alike": [4] * 13,
    "a frequent word": [0, 5, 0, 0, 2, 0, 5, 0, 0, 0, 9, 0, 0, 2],
    "many": np.random.default_rng(2).zipf(1.3, 500) % ROWS,
}


def rows_of(ids):
    values = np.random.default_rng(1).normal(size=[len(ids), WIDTH]).astype(np.float32)
    return SparseRows(tf.constant(np.asarray(ids, np.int32)), tf.constant(values))


def in_pairs(values):
    """Returns the sum of neighbours, then of neighbours of these, and so on."""
    while len(values) > 1:
        odd = values[len(values) // 2 * 2 :]
        values = np.concatenate([values[0:-1:2] + values[1::2], odd]) if len(values) > 1 else values
    return values[0]


@tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, WIDTH])], autograph=False)
def added(ids, values):
    return add_up(SparseRows(ids, values))


@pytest.mark.parametrize("name", IDS)
def test_each_row_has_the_sum_of_its_gradients_in_pairs(name):
    rows = rows_of(IDS[name])
    sums = added(*rows)
    ids, values = np.asarray(IDS[name], int), rows.values.numpy()
    np.testing.assert_array_equal(sums.ids, np.unique(ids))
    for row, total in zip(sums.ids.numpy(), sums.values.numpy(), strict=True):
        np.testing.assert_array_equal(total, in_pairs(values[ids == row]))


@pytest.mark.parametrize("name", IDS)
def test_rows_are_added_to_the_gradient_without_two_writes_to_one_place(name):
    reduction = GradientReduction(Group(), tf.float32, None, False, Group(), [True], [False])
    rows, dense = rows_of(IDS[name]), np.random.default_rng(3).normal(size=[ROWS, WIDTH]).astype(np.float32)

    def add(gradient, ids, values):
        return reduction.add_rows(gradient, SparseRows(ids, values))

    specs = [tf.TensorSpec([ROWS, WIDTH]), tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, WIDTH])]
    function = tf.compat.v1.wrap_function(add, specs)
    expected = dense.astype(np.float64)
    np.add.at(expected, np.asarray(IDS[name], int), rows.values.numpy())
    np.testing.assert_allclose(function(tf.constant(dense), *rows), expected, rtol=1e-5, atol=1e-5)
    kinds = {node.op for node in function.graph.as_graph_def().node}
    kinds |= {node.op for each in function.graph.as_graph_def().library.function for node in each.node_def}
    assert not kinds.intersection(ATOMIC)
    scatters = [op for op in function.graph.get_operations() if "Scatter" in op.type]
    assert [op.type for op in scatters] == ["TensorScatterAdd"]
    places = function.prune(function.inputs[1:3], scatters[0].inputs[1])(*rows).numpy().ravel()
    assert len(set(places)) == len(places)
