"""Windows over contexts as a graph; `labelled.squad.divide` is its specification.

A window is a row: [CLS] question [SEP] part of the context [SEP]. All windows of all questions are one batch.
"""

from typing import NamedTuple

import tensorflow as tf

from tftrain.inference.trained_model import encoder_batch


class Windows(NamedTuple):
    """Windows, w of them, of S places each; those of a question follow each other.

    Attributes:
        batch: what the model reads, int32 [w, S] each.
        question: index of each window's question, int32 [w], ascending.
        token: which of all tokens of all contexts is in a place, int32 [w, S]; 0 where there is none.
        is_part: whether a token of a context is in a place, bool [w, S].
        is_best: whether that has more context on both sides here than in any other window, bool [w, S].
    """

    batch: dict[str, tf.Tensor]
    question: tf.Tensor
    token: tf.Tensor
    is_part: tf.Tensor
    is_best: tf.Tensor


def divide(
    asked: tf.RaggedTensor, context: tf.RaggedTensor, ends: tuple[int, int], max_seq_length: int, stride: int
) -> Windows:
    """Makes the windows of questions about contexts.

    Args:
        asked: tokens of the questions, int32 [n, tokens]; they leave room for a token of the context.
        context: tokens of their contexts, int32 [n, tokens].
        ends: ids of [CLS] and [SEP].
        max_seq_length: most tokens of a window.
        stride: tokens between the beginnings of two windows of a context.
    """
    asked_tokens, tokens = (tf.cast(each.row_lengths(), tf.int32) for each in (asked, context))
    room = max_seq_length - asked_tokens - 3
    step = tf.minimum(stride, room)
    count = 1 + (tf.maximum(tokens - room, 0) + step - 1) // step
    question = tf.repeat(tf.range(tf.size(count)), count)

    def of_window(values):
        return tf.gather(tf.cast(values, tf.int32), question)[:, tf.newaxis]

    begin = tf.ragged.range(count).flat_values[:, tf.newaxis] * of_window(step)
    size = tf.minimum(of_window(room), of_window(tokens) - begin)
    first = of_window(asked_tokens) + 2
    length = first + size + 1
    place = tf.range(tf.maximum(tf.reduce_max(length), 1))[tf.newaxis]  # Without questions the maximum is negative.
    inside = place - first
    is_part = (inside >= 0) & (inside < size)
    token = tf.where(is_part, of_window(context.row_starts()) + begin + inside, 0)
    cls, sep = ends
    ids = tf.where((place == first - 1) | (place == length - 1), sep, 0)
    ids = tf.where(place == 0, cls, ids)
    is_asked = (place > 0) & (place < first - 1)
    of_asked = tf.where(is_asked, of_window(asked.row_starts()) + place - 1, 0)
    ids = tf.where(is_asked, _gather(asked.flat_values, of_asked), ids)
    ids = tf.where(is_part, _gather(context.flat_values, token), ids)
    mask = tf.cast(place < length, tf.int32)
    segments = tf.cast(place >= first, tf.int32) * mask
    is_best = is_part & _is_best(inside, size, is_part, token, tf.size(context.flat_values))
    return Windows(encoder_batch(ids, mask, segments), question, token, is_part, is_best)


def _is_best(inside: tf.Tensor, size: tf.Tensor, is_part: tf.Tensor, token: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns which windows have the most context around a token, of equal ones the first; see `squad._best_windows`.

    Args:
        inside: place of a token in the window's part of the context, [w, S].
        size: tokens of the part, [w, 1].
        is_part: where a token is, [w, S].
        token: which one, [w, S].
        tokens: how many there are.
    """
    # In fp64, as NumPy has it: in fp32 other windows would be equal.
    score = tf.cast(tf.minimum(inside, size - 1 - inside), tf.float64) + 0.01 * tf.cast(size, tf.float64)
    window = tf.broadcast_to(tf.range(tf.shape(inside)[0])[:, tf.newaxis], tf.shape(inside))
    of_token = tf.where(is_part, token, -1)  # -1 is of no segment.
    highest = _gather(tf.math.unsorted_segment_max(score, of_token, tokens), token)
    of_token = tf.where(score == highest, of_token, -1)
    return _gather(tf.math.unsorted_segment_min(window, of_token, tokens), token) == window


def _gather(values: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Returns elements of a vector that may be empty; then `index` must be 0."""
    return tf.gather(tf.concat([values, tf.zeros([1], values.dtype)], 0), index)
