"""Rows of a table by index, with a dense gradient.

TensorFlow's own gradient of a gather is a list of rows, `IndexedSlices`. Where it meets the dense gradient of a tied
output, the sum becomes a list with one row for every row of the table and more. Here rows that were picked more than
once are added up at once, in float32 at least: in bfloat16 the 257th gradient of a frequent word would add nothing.
"""

import tensorflow as tf

from tftrain.model.precision import wide_dtype


@tf.custom_gradient
def lookup(table: tf.Tensor, indices: tf.Tensor):
    """Picks rows.

    Args:
        table: [rows, width], any float dtype.
        indices: [n], int32 or int64, each in [0, rows).

    Returns:
        [n, width], like `table`; and a gradient for the table that is a dense tensor.

    Raises:
        tf.errors.InvalidArgumentError: an index is out of range (on CPU, outside XLA).
    """

    def gradient(upstream):
        wide = tf.cast(upstream, wide_dtype(table.dtype))
        total = tf.math.unsorted_segment_sum(wide, indices, tf.shape(table)[0])
        return tf.cast(total, table.dtype), None

    return tf.gather(table, indices), gradient
