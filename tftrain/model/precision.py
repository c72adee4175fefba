"""The format of sums that half precision would spoil: statistics of a norm, softmax and losses."""

import tensorflow as tf


def wide_dtype(dtype: tf.DType | str) -> tf.DType:
    """Returns float32 for float32 and every narrower dtype, float64 for float64."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32
