"""From questions and contexts to answers as a graph: what `task_predictions` does, with `squad_answers` for the choice.

A token of a context belongs to a word, and a word has its place in the context. So an answer is a range of characters
of the original text, whatever normalization makes of them. `finetune.squad.divide` is the specification of `divide`: a
window is a row, [CLS] question [SEP] part of the context [SEP], and all windows of all questions are one batch.
"""

from typing import NamedTuple

import tensorflow as tf

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.finetune.squad import longest_query
from tftrain.inference.serving.code_points import substrings
from tftrain.inference.serving.signature import QUESTION, Outputs, ServedModel, Signature
from tftrain.inference.serving.word_span_graph import words_of
from tftrain.inference.trained_model import answer_settings, encoder_batch
from tftrain.model.transformer import Transformer
from tftrain.tokenizer.roles import Roles

# Windows that the model reads at once: a long context must not need the memory of all its windows.
WINDOWS_AT_ONCE = 32


class Windows(NamedTuple):
    """Windows, w of them, of S places each; those of a question follow each other."""

    batch: dict[str, tf.Tensor]  # what the model reads, int32 [w, S] each
    question: tf.Tensor  # index of each window's question, int32 [w], ascending
    token: tf.Tensor  # which of all tokens of all contexts is in a place, int32 [w, S]; 0 where there is none
    is_part: tf.Tensor  # whether a token of a context is in a place, bool [w, S]
    is_best: tf.Tensor  # whether that has more context on both sides here than in any other window, bool [w, S]


def answers(source: ServedModel) -> Signature | None:
    """Returns what answers questions; None if the model is not for question_answering or its tokenizer has no ops.

    It maps questions, string [n], and contexts, string [n], to:
        answer: string [n]: the characters of the context from `start` up to `end`; "" if there is no answer. A byte of
            a context that is not UTF-8 counts as one character, U+FFFD.
        score: fp32 [n], sum of the logits of its ends.
        null_score: fp32 [n], the same of the answer that there is none.
        start, end: int32 [n], in characters (code points) of the context; 0 and 0 if there is no answer.
    """
    model, text, threshold = source.model, source.text, source.null_score_threshold
    if text is None or model.config.task != "question_answering":
        return None
    settings, vocabulary = answer_settings(model, threshold, source.top_k), model.tokenizer.vocabulary
    roles, longest = vocabulary.roles, model.max_seq_length

    def answer(question: tf.Tensor, context: tf.Tensor) -> Outputs:
        equal = tf.debugging.assert_equal(
            tf.size(question), tf.size(context), "question and context: expected as many of one as of the other"
        )
        with tf.control_dependencies([equal]):
            codes = tf.strings.unicode_decode(context, "UTF-8")
        words = words_of(codes, vocabulary.tokenizer_type)
        asked = text.tokenize(question)[:, : longest_query(settings.max_query_length, longest, roles)]
        pieces = text.tokenize(words.strings)
        word = tf.cast(pieces.value_rowids(), tf.int32)  # that each token of all contexts is of
        rows = tf.gather(tf.cast(words.text, tf.int64), word)
        tokens = tf.RaggedTensor.from_value_rowids(pieces.flat_values, rows, nrows=codes.nrows())
        windows = divide(asked, tokens, roles, longest, settings.doc_stride, vocabulary.padding_id)
        logits = _logits(model.network, windows.batch)
        score, first, last = _best(windows, word, logits, settings)
        null = tf.math.segment_min(tf.reduce_sum(logits[:, 0], axis=-1), windows.question)
        is_null = tf.math.is_inf(score)
        if threshold is not None:  # In fp64, as `squad_answers` compares them.
            is_null |= tf.cast(null, tf.float64) - tf.cast(score, tf.float64) > settings.null_score_threshold
        pairs = ((words.begins, first), (words.ends, last))
        start, end = (tf.where(is_null, 0, gather_or_zero(places, index)) for places, index in pairs)
        places = (codes.row_starts() + tf.cast(each, tf.int64) for each in (start, end))
        return {
            "answer": substrings(codes.flat_values, *places),
            "score": tf.where(is_null, null, score),
            "null_score": null,
            "start": start,
            "end": end,
        }

    return Signature(answer, QUESTION)


def _best(
    windows: Windows, word: tf.Tensor, logits: tf.Tensor, settings: FineTuningConfig
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the best range of words of each question: its score, -inf if there is none, first and last word."""
    count = tf.minimum(settings.n_best, tf.shape(logits)[1])
    begin_scores, begins = tf.math.top_k(tf.where(windows.is_best, logits[..., 0], -tf.float32.max), count)
    end_scores, ends = tf.math.top_k(tf.where(windows.is_part, logits[..., 1], -tf.float32.max), count)
    tokens = (tf.gather(windows.token, places, batch_dims=1) for places in (begins, ends))
    first, last = (gather_or_zero(word, token) for token in tokens)
    fits = tf.gather(windows.is_best, begins, batch_dims=1)[:, :, tf.newaxis]
    fits &= tf.gather(windows.is_part, ends, batch_dims=1)[:, tf.newaxis]
    fits &= begins[:, :, tf.newaxis] <= ends[:, tf.newaxis]
    fits &= last[:, tf.newaxis] - first[:, :, tf.newaxis] < settings.max_answer_length
    scores = tf.where(fits, begin_scores[:, :, tf.newaxis] + end_scores[:, tf.newaxis], -float("inf"))
    # The first of equal scores counts: window by window, then the better beginning, then the better end.
    scores = tf.reshape(scores, [-1, count * count])
    choice = tf.argmax(scores, axis=1, output_type=tf.int32)
    highest = tf.gather(scores, choice, batch_dims=1)
    best = tf.math.segment_max(highest, windows.question)
    is_best = highest == tf.gather(best, windows.question)
    number = tf.where(is_best, tf.range(tf.size(highest)), tf.int32.max)
    window = tf.math.segment_min(number, windows.question)
    choice = tf.gather(choice, window)
    first = tf.gather(tf.gather(first, window), choice // count, batch_dims=1)
    return best, first, tf.gather(tf.gather(last, window), choice % count, batch_dims=1)


def _logits(network: Transformer, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the logits of both ends of an answer in each place, fp32 [w, S, 2]."""
    windows, length = (tf.shape(batch["input_ids"])[axis] for axis in (0, 1))

    def step(begin: tf.Tensor, best: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = {name: values[begin : begin + WINDOWS_AT_ONCE] for name, values in batch.items()}
        logits = tf.cast(network.task_outputs(part), tf.float32)
        return begin + WINDOWS_AT_ONCE, tf.concat([best, logits], axis=0)

    _, logits = tf.while_loop(
        lambda begin, _: begin < windows,
        step,
        [0, tf.zeros([0, length, 2])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None, 2])],
        parallel_iterations=1,
    )
    return logits


def divide(
    asked: tf.RaggedTensor,
    context: tf.RaggedTensor,
    roles: Roles,
    max_seq_length: int,
    stride: int,
    padding_id: int = 0,
) -> Windows:
    """Makes the windows of questions about contexts, given the tokens of both, int32 [n, tokens].

    Args:
        asked: the questions; a window has at least one token of the context too.
        roles: the special tokens of the vocabulary.
        stride: tokens between the beginnings of two windows of a context.
        padding_id: the id at positions without a token.
    """
    asked_tokens, tokens = (tf.cast(each.row_lengths(), tf.int32) for each in (asked, context))
    capacity = max_seq_length - asked_tokens - roles.around(2)
    step = tf.minimum(stride, capacity)
    count = 1 + (tf.maximum(tokens - capacity, 0) + step - 1) // step
    question = tf.repeat(tf.range(tf.size(count)), count)

    def of_window(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.cast(values, tf.int32), question)[:, tf.newaxis]

    begin = tf.ragged.range(count).flat_values[:, tf.newaxis] * of_window(step)
    size = tf.minimum(of_window(capacity), of_window(tokens) - begin)
    first = of_window(asked_tokens) + 1 + roles.separators
    length = first + size + 1
    position = tf.range(tf.maximum(tf.reduce_max(length), 1))[tf.newaxis]  # Without questions the maximum is negative.
    inside = position - first
    is_part = (inside >= 0) & (inside < size)
    token = tf.where(is_part, of_window(context.row_starts()) + begin + inside, 0)
    is_separator = (position < first) & (position >= first - roles.separators) | (position == length - 1)
    ids = tf.where(is_separator, roles.separator, padding_id)
    ids = tf.where(position == 0, roles.beginning, ids)
    is_asked = (position > 0) & (position < first - roles.separators)
    of_asked = tf.where(is_asked, of_window(asked.row_starts()) + position - 1, 0)
    ids = tf.where(is_asked, gather_or_zero(asked.flat_values, of_asked), ids)
    ids = tf.where(is_part, gather_or_zero(context.flat_values, token), ids)
    mask = tf.cast(position < length, tf.int32)
    token_types = tf.cast(position >= first, tf.int32) * mask * roles.second_type
    is_best = is_part & _is_best(inside, size, is_part, token, tf.size(context.flat_values))
    return Windows(encoder_batch(ids, mask, token_types), question, token, is_part, is_best)


def _is_best(inside: tf.Tensor, size: tf.Tensor, is_part: tf.Tensor, token: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns which windows have the most context around a token, of equal ones the first; see `squad._best_windows`.

    Args:
        inside: position of a token in the window's part of the context, [w, S].
        size: tokens of the part, [w, 1].
        is_part, token: where a token is and which one of `tokens`, [w, S].
    """
    # In fp64, as NumPy has it: in fp32 other windows would be equal.
    score = tf.cast(tf.minimum(inside, size - 1 - inside), tf.float64) + 0.01 * tf.cast(size, tf.float64)
    window = tf.broadcast_to(tf.range(tf.shape(inside)[0])[:, tf.newaxis], tf.shape(inside))
    of_token = tf.where(is_part, token, -1)  # -1 is of no token.
    highest = gather_or_zero(tf.math.unsorted_segment_max(score, of_token, tokens), token)
    of_token = tf.where(score == highest, of_token, -1)
    return gather_or_zero(tf.math.unsorted_segment_min(window, of_token, tokens), token) == window


def gather_or_zero(values: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Returns elements of a vector; 0 if it is empty, where `index` must be 0."""
    return tf.gather(tf.concat([values, tf.zeros([1], values.dtype)], 0), index)
