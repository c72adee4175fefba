"""Each loss of embeddings, and its gradient, against its definition over all samples at once in fp64."""

import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.tasks.test_in_batch_loss import drawn
from tftrain.config.fine_tuning import SCORED, TAUGHT, FineTuningConfig
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group
from tftrain.tasks import embedding_losses, in_batch_loss
from tftrain.tasks.in_batch_loss import Samples

SAMPLES, WIDTH = 12, 7
FLOAT32, FLOAT64 = (None, "float32", 1e-5), ("3,7", "float64", 1e-10)  # shorter lengths, their type, its tolerance
CASES = [  # losses, texts of a sample
    *(("in_batch", 2, *FLOAT32), ("in_batch", 4, *FLOAT64)),
    *(("symmetric", 2, *FLOAT32), ("symmetric", 4, None, "float64", 1e-10)),
    *(("cosent", 2, *FLOAT32), ("cosent", 2, *FLOAT64), ("cosine", 2, *FLOAT32), ("cosine", 2, *FLOAT64)),
    *(("triplet", 3, *FLOAT32), ("triplet", 4, *FLOAT64), ("margin_mse", 3, *FLOAT32), ("margin_mse", 4, *FLOAT64)),
    *(("kl", 3, *FLOAT32), ("kl", 4, *FLOAT64)),
]


def made(loss, texts, seed=0):
    """Returns samples with duplicates of anchors and partners, missing negatives, ties of labels and filling rows."""
    vectors, weights = drawn(SAMPLES, texts, WIDTH, seed)
    random = np.random.default_rng(seed)
    ids = 1 + np.arange(SAMPLES * texts).reshape(SAMPLES, texts)
    ids[3, 1] = ids[0, 1]  # a partner twice
    ids[5, 0] = ids[1, 0]  # an anchor twice
    ids[7, 1] = ids[2, 0]  # a partner that is another sample's anchor
    if texts > 2:
        ids[4, 2] = ids[6, 1]  # a hard negative that is another sample's partner
        ids[8:10, texts - 1] = 0
    labels = random.integers(0, 4, SAMPLES) / 3 if loss in SCORED else None
    labels = random.normal(size=[SAMPLES, texts - 1]) if loss in TAUGHT else labels
    return vectors, weights, labels, ids


def found_among(scores, partner, is_candidate):
    """Returns the cross-entropy of finding the partner of each row, given which other columns are candidates."""
    is_candidate[np.arange(len(partner)), partner] = True
    own = tf.gather(scores, partner, batch_dims=1)
    return tf.reduce_logsumexp(tf.where(is_candidate, scores, -np.inf), axis=1) - own


def plain(loss, vectors, weights, labels, ids, settings):
    """Returns the loss of each sample by its definition: every score, one sample after the other."""
    count, texts = ids.shape
    t, real, every = settings.score_temperature, weights > 0, range(count)
    scores = tf.einsum("ih,jkh->ijk", vectors[:, 0], vectors[:, 1:])
    own = tf.gather(scores, every, batch_dims=1)
    if loss == "cosent":
        pairs = [(i, j) for i in every for j in every if labels[i] < labels[j] and real[i] and real[j]]
        lower, higher = (tf.gather(own[:, 0], numbers) for numbers in zip(*pairs, strict=True))
        return tf.fill([count], tf.math.log(1 + tf.reduce_sum(tf.exp((lower - higher) / t))))
    if loss in ("in_batch", "symmetric"):
        is_candidate, is_anchor = np.zeros([count, count, texts - 1], bool), np.zeros([count, count], bool)
        for i, j in itertools.product(every, every):
            same = {ids[i, 0], ids[i, 1]}
            for k in range(texts - 1):
                is_known = ids[j, k + 1] in same or (k == 0 and ids[j, 0] == ids[i, 0])
                is_candidate[i, j, k] = real[j] and ids[j, k + 1] and not is_known
            is_anchor[i, j] = real[j] and ids[j, 0] not in same and ids[j, 1] != ids[i, 1]
        flat = (tf.reshape(each, [count, -1]) for each in (scores / t, is_candidate))
        one = found_among(next(flat), np.arange(count) * (texts - 1), next(flat).numpy())
        other = found_among(tf.transpose(scores[..., 0]) / t, np.arange(count), is_anchor)
        return one if loss == "in_batch" else (one + other) / 2
    losses = []
    for i in every:
        others = [k for k in range(1, texts - 1) if ids[i, k + 1]]  # hard negatives of the sample
        if loss == "cosine":
            one = (own[i, 0] - labels[i]) ** 2
        elif loss == "triplet":
            terms = [tf.maximum((1 - own[i, 0]) - (1 - own[i, k]) + settings.margin, 0) for k in others]
            one = sum(terms) / max(1, len(others))
        elif loss == "margin_mse":
            errors = [(own[i, 0] - own[i, k]) - (labels[i][0] - labels[i][k]) for k in others]
            one = sum(error**2 for error in errors) / max(1, len(errors))
        else:
            student, teacher = (tf.stack([each[k] for k in (0, *others)]) / t for each in (own[i], labels[i]))
            chances = tf.nn.softmax(teacher)
            one = t * t * tf.reduce_sum(chances * (tf.math.log(chances) - tf.nn.log_softmax(student)))
        losses.append(tf.cast(one, tf.float64))
    return tf.stack(losses)


def expected(settings, vectors, weights, labels, ids):
    """Returns the losses and the gradient of their weighted sum, over all widths."""
    given = tf.constant(vectors, tf.float64)
    widths = [int(each) for each in (settings.matryoshka_dims or str(WIDTH)).split(",")]
    widths += [] if widths[-1] == WIDTH else [WIDTH]
    with tf.GradientTape() as tape:
        tape.watch(given)
        short = [given[..., :each] for each in widths]
        short = [each if each.shape[-1] == WIDTH else each / tf.norm(each, axis=-1, keepdims=True) for each in short]
        every = [plain(settings.embedding_loss, each, weights, labels, ids, settings) for each in short]
        losses = tf.reduce_mean(tf.stack(every), axis=0)
        total = tf.reduce_sum(losses * weights)
    return losses.numpy(), tape.gradient(total, given).numpy()


def computed(settings, samples, group=Group()):  # noqa: B008
    """Returns the losses and the gradient of this rank."""
    if settings.compares_samples("embedding"):
        loss = embedding_losses.comparing(settings, samples.vectors.shape[-1], True, jit=False)
        found = loss(samples, group)
        np.testing.assert_array_equal(loss(samples, group, trains=False).loss, found.loss)
        return found.loss.numpy(), found.gradient.numpy()
    with tf.GradientTape() as tape:
        tape.watch(samples.vectors)
        losses, _ = embedding_losses.own_terms(settings, samples, True)
        total = tf.reduce_sum(losses * samples.weights)
    return losses.numpy(), tape.gradient(total, samples.vectors).numpy()


def as_tensors(vectors, weights, labels, ids, dtype="float64", own=slice(None)):
    labels = None if labels is None else tf.constant(labels[own], tf.float64)
    return Samples(tf.constant(vectors[own], dtype), tf.constant(weights[own], dtype), labels, tf.constant(ids[own]))


@pytest.mark.parametrize(("loss", "texts", "dims", "dtype", "tolerance"), CASES)
def test_losses_and_gradients_are_those_of_the_definitions(monkeypatch, loss, texts, dims, dtype, tolerance):
    monkeypatch.setattr(in_batch_loss, "COMPARED_ROWS", 5)
    settings, given = FineTuningConfig(embedding_loss=loss, matryoshka_dims=dims, margin=0.9), made(loss, texts)
    losses, gradient = computed(settings, as_tensors(*given, dtype))
    losses_of_all, gradient_of_all = expected(settings, *given)
    real = given[1] > 0
    scale = max(1, np.abs(gradient_of_all).max())
    np.testing.assert_allclose(losses[real], losses_of_all[real], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(gradient, gradient_of_all, rtol=tolerance, atol=scale * tolerance)
    assert np.abs(gradient_of_all).max() > 0.01


@pytest.mark.parametrize(("loss", "texts", "dims"), [("in_batch", 4, "3"), ("symmetric", 4, None), ("cosent", 2, "3")])
def test_ranks_have_the_losses_and_gradients_of_one(monkeypatch, loss, texts, dims):
    settings, given, ranks = FineTuningConfig(embedding_loss=loss, matryoshka_dims=dims), made(loss, texts, seed=1), 3
    whole, found, sent = computed(settings, as_tensors(*given)), {}, {}
    barrier = threading.Barrier(ranks, timeout=60)

    def gather(group, tensor, name):
        sent[name, group.rank] = tensor
        barrier.wait()
        rows = tf.concat([sent[name, rank] for rank in range(ranks)], axis=0)
        barrier.wait()
        return rows

    def of_rank(rank):
        own = slice(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)
        found[rank] = computed(settings, as_tensors(*given, own=own), Group("data", tuple(range(ranks)), rank))

    monkeypatch.setattr(collectives, "all_gather_rows", gather)
    threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(ranks)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for index, tolerance in ((0, 1e-12), (1, 1e-10)):
        joined = np.concatenate([found[rank][index] for rank in range(ranks)])
        np.testing.assert_allclose(joined, whole[index], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("labels", [np.zeros(4), np.array([0.0, 0.0, 1.0, 1.0])])
def test_pairs_in_order_have_no_loss_of_cosent(labels):
    scores, weights = np.array([-1.0, -0.9, 0.9, 1.0]), np.ones(4)
    vectors = np.stack([np.ones_like(scores), scores], axis=1)[..., None]
    settings = FineTuningConfig(embedding_loss="cosent")
    losses, gradient = embedding_losses.comparing(settings, 1, True, jit=False)(
        Samples(*map(tf.constant, (vectors, weights, labels))), Group()
    )[::2]
    np.testing.assert_allclose(losses, 0, atol=1e-12)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


# Losses that sentence-transformers 6.2.0 computes in fp64 with a margin of 0.9, by loss, texts and shorter lengths.
PUBLISHED = {
    ("in_batch", 2, None): 12.194295867346657,
    ("in_batch", 4, None): 15.673284409860962,
    ("in_batch", 2, "2"): 25.55141981927823 / 2,
    ("symmetric", 2, None): 12.831906920618193,
    ("symmetric", 4, None): 14.571401191875346,
    ("cosent", 2, None): 20.88892804163738,
    ("cosent", 2, "2"): 50.83952178347335 / 2,
    ("triplet", 3, None): 0.8659828255692157,
    ("cosine", 2, None): 0.40427189918975737,
    ("margin_mse", 4, None): 2.0127042591375313,
    ("kl", 4, None): 0.2649201829030007,
}


@pytest.mark.parametrize("case", PUBLISHED, ids=str)
def test_losses_are_those_of_another_library(case):
    loss, texts, dims = case
    random = np.random.default_rng(7)
    vectors, teacher = random.normal(size=(8, 4, 6)), random.normal(size=(8, 3))
    vectors = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))[:, :texts]
    labels = np.arange(8) % 5 / 4 if loss in SCORED else teacher if loss in TAUGHT else None
    ids = np.arange(1, 8 * texts + 1).reshape(8, texts)
    settings = FineTuningConfig(embedding_loss=loss, matryoshka_dims=dims, margin=0.9)
    losses, _ = computed(settings, as_tensors(vectors, np.ones(8), labels, ids))
    assert losses.mean() == pytest.approx(PUBLISHED[case], rel=1e-12)
