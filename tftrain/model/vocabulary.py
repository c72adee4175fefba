"""The vocabulary divided among ranks: words looked up, and a loss computed, where no rank has all classes.

A rank has consecutive rows of the word embedding, and with them the same classes of the tied output. Logits are by far
the largest activation of a small model, and the whole of them never exists: what travels is four numbers for each
masked position (Shoeybi et al., arXiv 1909.08053, section 3).
"""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group
from tftrain.parallel.tensor import sum_over_ranks


@dataclass(frozen=True, eq=False)
class SlicedLogits:
    """Logits of which each rank has some classes.

    Attributes:
        local: [..., classes of this rank], float32 (float64 in a float64 model).
        first: the class that the first of them is.
        group: the ranks, in the order of their classes.
        place: name of the place in the model, for the collectives.
    """

    local: tf.Tensor
    first: int
    group: Group
    place: str


def sliced_lookup(
    look_up: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    table: tf.Tensor,
    ids: tf.Tensor,
    first: int,
    group: Group,
    place: str,
) -> tf.Tensor:
    """Picks rows of a table of which each rank has some.

    Args:
        look_up: a function of table and indices, such as `tf.gather`; words of other ranks become zero gradients of
            this rank's first row.
        table: [rows of this rank, width].
        ids: int32 [n], indices into the whole table, equal on every rank; one outside it picks zeros.
        first: the row that this rank's first is.
        group: the ranks.
        place: name of the place in the model, for the collective.

    Returns:
        [n, width], in the table's dtype, equal on every rank.
    """
    here = ids - first
    mine = (here >= 0) & (here < table.shape[0])
    rows = look_up(table, tf.where(mine, here, 0))
    return sum_over_ranks(group, tf.where(mine[:, tf.newaxis], rows, tf.zeros([], rows.dtype)), place)


def sliced_cross_entropy(logits: SlicedLogits, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Compares predictions with labels; the softmax is that over the classes of all ranks.

    Args:
        logits: of n positions.
        labels: int32 [n], classes of the whole, equal on every rank.

    Returns:
        Two tensors [n] in the logits' dtype, equal on every rank: the cross-entropies in nats, which have a gradient;
        and 1 where the label is the best class, the lowest of those that share the best logit, else 0.
    """
    group, first, place = logits.group, logits.first, logits.place
    classes = logits.local.shape[-1]

    @tf.custom_gradient
    def compare(local):
        best_here = tf.reduce_max(local, axis=-1)  # [n]
        best = collectives.all_reduce(group, best_here, f"{place}/best", "max")
        shifted = local - best[:, tf.newaxis]
        powers = tf.exp(shifted)
        # Rows of zeros for labels of other ranks.
        chosen = tf.one_hot(labels - first, classes, dtype=local.dtype)
        winner = first + tf.argmax(local, axis=-1, output_type=labels.dtype)
        lower_wins = tf.cast((best_here == best) & (winner < labels), local.dtype)
        sums = [tf.reduce_sum(powers, axis=-1), tf.reduce_sum(shifted * chosen, axis=-1), lower_wins]
        total, label_logit, lower_wins = tf.unstack(collectives.all_reduce(group, tf.stack(sums), f"{place}/sums"))

        def gradient(upstream, _correct):
            return upstream[:, tf.newaxis] * (powers / total[:, tf.newaxis] - chosen)

        # The label's logit is the best one where their difference is exactly 0.
        correct = tf.cast((label_logit == 0) & (lower_wins == 0), local.dtype)
        return (tf.math.log(total) - label_logit, correct), gradient

    return compare(tf.reshape(logits.local, [-1, classes]))
