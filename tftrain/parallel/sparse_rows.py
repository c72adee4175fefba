"""Gradients of looked-up rows of a table, and their sum, with the same bits whatever the device.

On a GPU, TensorFlow's scatters and segment sums add rows of one id atomically, in an order that changes from call to
call. Data parallel ranks that add up the same rows would then drift apart. Here the rows are sorted by id, and
neighbours of one id are added in pairs until every id occurs once: only gathers and elementwise sums.
"""

from typing import NamedTuple

import tensorflow as tf


class SparseRows(NamedTuple):
    """Gradients of looked-up rows."""

    ids: tf.Tensor  # int32 [n], the rows of the table; a row may occur several times
    values: tf.Tensor  # [n, width], their gradients


def add_up(rows: SparseRows) -> SparseRows:
    """Adds up the gradients of each row, outside XLA; the order of the rows of one id decides how they are paired.

    Returns:
        Each id once, ascending, and its sum, in the dtype of `rows.values`. Each pass halves the occurrences of every
        id, so an id that occurs m times takes log2(m) passes, and all passes together read about 2 n rows.
    """
    order = tf.argsort(rows.ids, stable=True)
    ids, values = tf.gather(rows.ids, order), tf.gather(rows.values, order)

    def occurs_again(ids: tf.Tensor, values: tf.Tensor):
        return tf.reduce_any(ids[1:] == ids[:-1])

    def add_pairs(ids: tf.Tensor, values: tf.Tensor):
        position = tf.range(tf.size(ids))
        is_left = (position - tf.searchsorted(ids, ids)) % 2 == 0  # `searchsorted` finds the first place of each id.
        left = tf.boolean_mask(position, is_left)
        right = tf.minimum(left + 1, tf.size(ids) - 1)
        has_right = (right > left) & (tf.gather(ids, right) == tf.gather(ids, left))
        added = tf.where(has_right[:, tf.newaxis], tf.gather(values, right), tf.zeros([], values.dtype))
        return tf.gather(ids, left), tf.gather(values, left) + added

    shapes = (tf.TensorShape([None]), tf.TensorShape([None, values.shape[1]]))
    return SparseRows(*tf.while_loop(occurs_again, add_pairs, (ids, values), shapes, parallel_iterations=1))
