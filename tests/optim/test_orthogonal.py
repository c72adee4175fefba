"""The orthogonal updates of matrices: their singular values, and slices that tensor parallel ranks hold."""

import numpy as np
import pytest
import tensorflow as tf

from tests.parallel.simulated_ranks import SimulatedRanks
from tftrain.architecture.shard import VariableShard
from tftrain.optim.orthogonal import Orthogonalization, orthogonalized
from tftrain.optim.state_layout import Slice


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 6)])
@pytest.mark.parametrize("products", [tf.float32, tf.bfloat16])
def test_singular_values_come_near_one_and_singular_vectors_stay(shape, products):
    matrix = np.random.default_rng(0).normal(size=shape)
    update = np.asarray(orthogonalized(tf.constant(matrix, tf.float32), products), np.float64)
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    assert np.linalg.svd(update, compute_uv=False).min() > 0.6
    assert np.linalg.svd(update, compute_uv=False).max() < 1.3
    diagonal = u.T @ update @ v.T
    off = diagonal - np.diag(np.diag(diagonal))
    assert np.abs(off).max() < (1e-5 if products == tf.float32 else 0.05)


def test_a_matrix_of_zeros_stays_zero():
    assert not np.any(orthogonalized(tf.zeros([3, 4])))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_slice_is_that_of_the_whole_matrix(axis, monkeypatch):
    whole = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    expected = np.split(0.2 * np.sqrt(6) * np.asarray(orthogonalized(tf.constant(whole))), 2, axis)

    def update(group):
        half = np.split(whole, 2, axis)[group.rank]
        offset = tuple(group.rank * size if at == axis else 0 for at, size in enumerate(half.shape))
        shard = VariableShard("w", whole.shape, offset, half.shape)
        store = tf.concat([tf.reshape(half, [-1]), tf.zeros(3)], 0)
        slices = [Slice(0, half.size), Slice(None, 3)]
        return Orthogonalization([shard], group, tf.float32)(store, slices).numpy()

    for result, half in zip(SimulatedRanks(2, monkeypatch).run(update), expected, strict=True):
        np.testing.assert_allclose(result[:-3].reshape(half.shape), half, atol=1e-6)
        assert not result[-3:].any()
