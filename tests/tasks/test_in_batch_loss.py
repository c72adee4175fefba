"""The loss of a global batch against all its scores at once in fp64, in chunks, on several ranks, with filling rows."""

import numpy as np
import pytest
import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group
from tftrain.tasks import in_batch_loss
from tftrain.tasks.in_batch_loss import InBatchLoss, Samples

TEMPERATURE = 0.05
SHAPES = [(1, 2, 3), (2, 2, 1), (8, 2, 5), (12, 4, 7), (36, 3, 16)]  # samples, vectors of each, length


def drawn(samples, count, width, seed=0):
    """Returns vectors of length 1, the first two of a sample near each other, and weights, some of them 0."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(samples, count, width))
    vectors[:, 1] += 2 * vectors[:, 0]
    weights = np.where(random.random(samples) < 0.2, 0.0, 1.0)
    weights[0] = 1.0
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), weights


def expected(vectors, weights):
    """Returns loss, whether the partner is the nearest, and TensorFlow's gradient of the weighted sum, all in fp64."""
    samples, count, width = vectors.shape
    given = tf.constant(vectors, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(given)
        scores = tf.matmul(given[:, 0], tf.reshape(given[:, 1:], [-1, width]), transpose_b=True) / TEMPERATURE
        scores += np.where(np.repeat(weights, count - 1) > 0, 0, -1e30)
        partners = np.arange(samples) * (count - 1)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(partners, scores)
        total = tf.reduce_sum(tf.where(weights > 0, loss, 0))
    return loss.numpy(), np.argmax(scores, axis=1) == partners, tape.gradient(total, given).numpy()


@pytest.mark.parametrize(
    ("shape", "dtype", "tolerance", "chunk"),
    [
        *((shape, "float64", 1e-10, 5) for shape in SHAPES),  # The last tiles of 12 samples and 36 candidates overlap.
        *(((12, 4, 7), "float64", 1e-10, chunk) for chunk in (1, 1 << 10)),
        ((36, 3, 16), "float32", 1e-5, 5),
    ],
    ids=str,
)
def test_loss_and_gradient_are_those_of_all_scores_at_once(monkeypatch, shape, dtype, tolerance, chunk):
    monkeypatch.setattr(in_batch_loss, "COMPARED_ROWS", chunk)
    vectors, weights = drawn(*shape)
    samples = Samples(tf.constant(vectors, dtype), tf.constant(weights))
    found = InBatchLoss(TEMPERATURE, jit=False)(samples, Group())
    loss, is_nearest, gradient = expected(tf.cast(vectors, dtype).numpy(), weights)
    real = weights > 0
    # Rounded scores of 20 and their differences.
    np.testing.assert_allclose(found.loss.numpy()[real], loss[real], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.gradient, gradient, rtol=tolerance, atol=20 * tolerance)
    np.testing.assert_array_equal(found.is_nearest.numpy()[real], is_nearest[real])
    assert not found.gradient.numpy()[~real].any()
    alone = InBatchLoss(TEMPERATURE, jit=False)(samples, Group(), trains=False)
    np.testing.assert_array_equal(alone.loss, found.loss)
    assert alone.gradient is None


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_computes_the_rows_and_columns_of_its_own_samples(monkeypatch, ranks, jit):
    vectors, weights = drawn(12, 3, 5)
    whole = InBatchLoss(TEMPERATURE, jit)(Samples(tf.constant(vectors), tf.constant(weights)), Group())
    share, sums = 12 // ranks, {}
    everything = {"anchors": vectors[:, 0], "candidates": vectors[:, 1:].reshape(-1, 5), "weights": weights}
    ids = np.arange(1, 12 * 3 + 1).reshape(12, 3)
    everything |= {"anchor_ids": ids[:, 0], "candidate_ids": ids[:, 1:].reshape(-1)}
    gathered = {f"vectors.{name}": tf.constant(each) for name, each in everything.items()}

    def gather(group, tensor, name):
        if name in gathered:
            return gathered[name]
        sums[group.rank] = tensor  # Rows are complete now; columns need those of the other ranks, in a second round.
        return tf.concat([sums.get(rank, tensor) for rank in range(ranks)], axis=0)

    monkeypatch.setattr(collectives, "all_gather_rows", gather)
    for _ in range(2):
        for rank in range(ranks):
            own = slice(rank * share, (rank + 1) * share)
            group = Group("data", tuple(range(ranks)), rank)
            found = InBatchLoss(TEMPERATURE, jit)(Samples(*map(tf.constant, (vectors[own], weights[own]))), group)
            np.testing.assert_allclose(found.loss, whole.loss[own], rtol=1e-12)
    assert len(sums) == ranks
    np.testing.assert_allclose(found.gradient, whole.gradient[own], rtol=1e-10, atol=1e-12)


def test_a_pull_and_a_push_are_finite_differences():
    vectors, weights = drawn(6, 3, 4)
    loss = InBatchLoss(TEMPERATURE, jit=False)
    found, step = loss(Samples(tf.constant(vectors), tf.constant(weights)), Group()).gradient.numpy(), 1e-6
    for place in [(0, 0, 1), (3, 1, 0), (5, 2, 3)]:
        ends = []
        for sign in (-1, 1):
            moved = vectors.copy()
            moved[place] += sign * step
            ends.append(np.sum(weights * loss(Samples(tf.constant(moved), tf.constant(weights)), Group()).loss))
        assert found[place] == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-6, abs=1e-6)
