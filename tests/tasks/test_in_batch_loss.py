"""The loss of a global batch against all its scores at once in fp64, in chunks, on several ranks, with filling rows."""

import numpy as np
import pytest
import tensorflow as tf

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
    ("shape", "dtype", "tolerance", "chunk", "jit"),
    [
        # The last tiles of 12 samples and 36 candidates overlap.
        *((shape, "float64", 1e-10, 5, False) for shape in SHAPES),
        *(((12, 4, 7), "float64", 1e-10, chunk, False) for chunk in (1, 1 << 10)),
        ((36, 3, 16), "float32", 1e-5, 5, False),
        ((12, 4, 7), "float64", 1e-10, 5, True),
    ],
    ids=str,
)
def test_loss_and_gradient_are_those_of_all_scores_at_once(monkeypatch, shape, dtype, tolerance, chunk, jit):
    monkeypatch.setattr(in_batch_loss, "COMPARED_ROWS", chunk)
    vectors, weights = drawn(*shape)
    samples = Samples(tf.constant(vectors, dtype), tf.constant(weights))
    found = InBatchLoss(TEMPERATURE, jit)(samples, Group())
    loss, is_nearest, gradient = expected(tf.cast(vectors, dtype).numpy(), weights)
    real = weights > 0
    # Rounded scores of 20 and their differences.
    np.testing.assert_allclose(found.loss.numpy()[real], loss[real], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.gradient, gradient, rtol=tolerance, atol=20 * tolerance)
    np.testing.assert_array_equal(found.is_nearest.numpy()[real], is_nearest[real])
    assert not found.gradient.numpy()[~real].any()
    alone = InBatchLoss(TEMPERATURE, jit)(samples, Group(), trains=False)
    np.testing.assert_array_equal(alone.loss, found.loss)
    assert alone.gradient is None
