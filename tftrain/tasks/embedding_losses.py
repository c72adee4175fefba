"""The losses of embeddings, by their names in `--embedding_loss`; scores are products of vectors, s = a c.

Losses that compare all samples of the global batch are called as `in_batch_loss.InBatchLoss`. The others are functions
of a sample's own vectors. Definitions are those of sentence-transformers (Reimers and Gurevych, arXiv 1908.10084).
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.parallel.mesh import Group
from tftrain.tasks.in_batch_loss import InBatchLoss, SampleLosses, Samples, gathered

Compared = Callable[[Samples, Group, bool], SampleLosses]


def comparing(settings: FineTuningConfig, width: int, normalized: bool, jit: bool) -> Compared:
    """Returns the loss of a run's flags, which compares vectors of a width, perhaps normalized."""
    loss, temperature = settings.embedding_loss, settings.score_temperature

    def of(name: str) -> Compared:
        if loss == "cosent":
            return functools.partial(_cosent, temperature, name)
        forth, back = (InBatchLoss(temperature, jit, each) for each in (name, f"{name}.partners"))
        return functools.partial(_symmetric, forth, back) if loss == "symmetric" else forth

    losses = {each: of(f"vectors.{each}") for each in settings.widths(width)}
    return functools.partial(_matryoshka, losses, normalized) if settings.matryoshka_dims else of("vectors")


def own_terms(settings: FineTuningConfig, samples: Samples, normalized: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the loss of each sample's own vectors, and whether the best candidate has the highest score, [n].

    The best candidate is the partner or, with a teacher's scores, the one with the highest of these.
    """
    vectors, ids, losses = samples.vectors, samples.text_ids, []
    real = tf.ones(vectors.shape[:2], tf.bool) if ids is None else ids != 0
    labels = None if samples.labels is None else tf.cast(samples.labels, vectors.dtype)
    for width in settings.widths(vectors.shape[-1]):
        scores = _scores(_first(vectors, width, normalized))
        losses.append(_own_loss(settings, scores, labels, real[:, 1:]))
    least = scores.dtype.min  # The last scores are those of whole vectors.
    has_teacher = labels is not None and labels.shape.rank == 2
    best = tf.argmax(tf.where(real[:, 1:], labels, least), 1) if has_teacher else 0
    return tf.add_n(losses) / len(losses), tf.equal(tf.argmax(tf.where(real[:, 1:], scores, least), 1), best)


def _own_loss(settings: FineTuningConfig, scores: tf.Tensor, labels: tf.Tensor | None, real: tf.Tensor) -> tf.Tensor:
    """Returns losses, [n], given scores of candidates, [n, k - 1], labels, and which candidates are real.

    triplet: how much a negative's distance 1 - s is below the partner's plus a margin (arXiv 1503.03832), on average.
    cosine: the squared difference of score and label.
    margin_mse: that of the margins of both models, partner minus negative (arXiv 2010.02666), on average.
    kl: t^2 times the divergence from the teacher's softmax of scores / t over the candidates (arXiv 1503.02531).
    """
    if settings.embedding_loss == "cosine":
        return tf.square(scores[:, 0] - labels)
    if settings.embedding_loss == "kl":
        temperature, least = settings.score_temperature, scores.dtype.min / 2
        own, teacher = (tf.nn.log_softmax(tf.where(real, each / temperature, least)) for each in (scores, labels))
        return temperature**2 * tf.reduce_sum(tf.where(real, tf.exp(teacher) * (teacher - own), 0), axis=1)
    if settings.embedding_loss == "triplet":
        terms = tf.nn.relu(scores - scores[:, :1] + settings.margin)
    else:
        errors = scores - labels
        terms = tf.square(errors[:, :1] - errors)
    weights = tf.cast(real[:, 1:], scores.dtype)
    return tf.reduce_sum(terms[:, 1:] * weights, axis=1) / tf.maximum(tf.reduce_sum(weights, axis=1), 1)


def _symmetric(forth: Compared, back: Compared, samples: Samples, group: Group, trains: bool = True) -> SampleLosses:
    """The mean of the in-batch loss, and of that of finding each partner's anchor (arXiv 2103.00020)."""
    ids = samples.text_ids
    swapped = samples._replace(vectors=samples.vectors[:, 1::-1], text_ids=None if ids is None else ids[:, 1::-1])
    one = forth(samples, group, trains)
    with tf.control_dependencies([one.loss if one.gradient is None else one.gradient]):  # Else both are in memory.
        other = back(swapped, group, trains)
    loss, gradient = (one.loss + other.loss) / 2, None
    if trains:
        of_pairs = tf.concat([other.gradient[:, ::-1], tf.zeros_like(one.gradient[:, 2:])], axis=1)
        gradient = (one.gradient + of_pairs) / 2
    return SampleLosses(loss, one.is_nearest, gradient)


def _cosent(temperature: float, name: str, samples: Samples, group: Group, trains: bool = True) -> SampleLosses:
    """log(1 + the sum of exp((s_i - s_j) / t) over samples i with a lower label than j): one number of a batch.

    It is the loss of each sample (CoSENT, kexue.fm/archives/8847). Only scores and labels travel between ranks.
    """
    vectors, count = samples.vectors, samples.vectors.shape[0]
    own = {"scores": _scores(vectors)[:, 0] / temperature, "labels": samples.labels, "weights": samples.weights}
    scores, labels, weights = (
        gathered(group, tf.cast(each, vectors.dtype), f"{name}.{what}") for what, each in own.items()
    )
    with tf.GradientTape() as tape:
        tape.watch(scores)
        loss = _disorder(scores, labels, weights)
    losses, is_nearest = tf.fill([count], loss), tf.zeros([count], tf.bool)
    if not trains:
        return SampleLosses(losses, is_nearest, None)
    slopes = tf.convert_to_tensor(tape.gradient(loss, scores)) * tf.reduce_sum(weights) / temperature
    slopes = slopes[group.rank * count :][:count]
    return SampleLosses(losses, is_nearest, slopes[:, tf.newaxis, tf.newaxis] * vectors[:, ::-1])


def _matryoshka(
    losses: dict[int, Compared], normalized: bool, samples: Samples, group: Group, trains: bool = True
) -> SampleLosses:
    """The mean of a loss over the first numbers of the vectors, of several widths (arXiv 2205.13147)."""
    total, gradient, before = 0.0, 0.0, []
    for width, loss in losses.items():
        with tf.GradientTape() as tape:
            tape.watch(samples.vectors)
            vectors = _first(samples.vectors, width, normalized)
        with tf.control_dependencies(before):  # Else those of all widths are in memory at once.
            found = loss(samples._replace(vectors=vectors), group, trains)
        total += found.loss
        if trains:
            gradient += tape.gradient(vectors, samples.vectors, found.gradient)
        before = [gradient if trains else total]
    return SampleLosses(total / len(losses), found.is_nearest, gradient / len(losses) if trains else None)


def _first(vectors: tf.Tensor, width: int, normalized: bool) -> tf.Tensor:
    """Returns the first numbers of vectors, [..., width], normalized again if these were."""
    is_shorter, first = width < vectors.shape[-1], vectors[..., :width]
    return tf.math.l2_normalize(first, axis=-1) if normalized and is_shorter else first


def _scores(vectors: tf.Tensor) -> tf.Tensor:
    """Returns the scores of each sample's own candidates, [n, k - 1]."""
    return tf.reduce_sum(vectors[:, :1] * vectors[:, 1:], axis=-1)


def _disorder(scores: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the loss of `_cosent` of all samples, [B]: in the order of labels, sums over lower ones are prefixes."""
    order, least = tf.argsort(labels, stable=True), scores.dtype.min / 2
    scores, labels, weights = (tf.gather(each, order) for each in (scores, labels, weights))
    prefixes = tf.math.cumulative_logsumexp(tf.where(weights > 0, scores, least))
    lower = tf.searchsorted(labels, labels, side="left")  # the number of samples with a lower label
    sums = tf.gather(prefixes, tf.maximum(lower - 1, 0))
    differences = tf.where((lower > 0) & (weights > 0), sums - scores, least)
    return tf.reduce_logsumexp(tf.concat([tf.zeros([1], scores.dtype), differences], axis=0))
