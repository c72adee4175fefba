"""From questions and contexts to answers as a graph: what `task_predictions` does, with `squad_answers` for the choice.

A token of a context belongs to a word, and a word has its place in the context. So an answer is a range of characters
of the original text, whatever normalization makes of them.
"""

import tensorflow as tf

from tftrain.inference.serving.text_graph import TextGraph
from tftrain.inference.serving.window_graph import Windows, divide
from tftrain.inference.serving.word_span_graph import Words, WordSpanGraph, characters
from tftrain.inference.trained_model import TrainedModel, answer_settings
from tftrain.labelled.squad import longest_query
from tftrain.model.transformer import Transformer

# The model reads so many windows at once: a long context must not need the memory of all its windows.
WINDOWS_AT_ONCE = 32


class AnswerGraph:
    """Answers questions."""

    def __init__(self, model: TrainedModel, text: TextGraph, null_score_threshold: float | None, n_best: int):
        """Makes the tables.

        Args:
            model: fine-tuned for question_answering, with a tokenizer that has ops.
            text: its tokenizer as a graph.
            null_score_threshold: as `tftrain.predict --null_score_threshold`; None: every question has an answer.
            n_best: as in `inference.answer_settings`.
        """
        self._settings = answer_settings(model, null_score_threshold, n_best)
        self._has_null = null_score_threshold is not None
        self._network, self._text, self._max_seq_length = model.network, text, model.max_seq_length
        vocabulary = model.tokenizer.vocabulary
        self._spans = WordSpanGraph(vocabulary.tokenizer_type)
        self._ends = vocabulary.id("[CLS]"), vocabulary.id("[SEP]")

    def __call__(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns answers.

        Args:
            question: string [n].
            context: string [n]. A byte that is not UTF-8 counts as one character, U+FFFD.

        Returns:
            answer: string [n]: the characters of the context from `start` up to `end`; "" if there is no answer.
            score: fp32 [n], sum of the logits of its ends.
            null_score: fp32 [n], the same of the answer that there is none.
            start, end: int32 [n], in characters (code points) of the context; 0 and 0 if there is no answer.
        """
        equal = tf.debugging.assert_equal(
            tf.size(question), tf.size(context), "question and context: expected as many of one as of the other"
        )
        with tf.control_dependencies([equal]):
            codes = tf.strings.unicode_decode(context, "UTF-8")
        words = self._spans(codes)
        windows, word = self._windows(question, words, codes.nrows())
        logits = _logits(self._network, windows.batch)
        score, first, last = self._best(windows, word, logits)
        null = tf.math.segment_min(tf.reduce_sum(logits[:, 0], axis=-1), windows.question)
        is_null = tf.math.is_inf(score)
        if self._has_null:  # In fp64, as `squad_answers` compares them.
            difference = tf.cast(null, tf.float64) - tf.cast(score, tf.float64)
            is_null |= difference > self._settings.null_score_threshold
        start, end = (tf.where(is_null, 0, places) for places in _places(words, first, last))
        places = (codes.row_starts() + tf.cast(each, tf.int64) for each in (start, end))
        return {
            "answer": characters(codes.flat_values, *places),
            "score": tf.where(is_null, null, score),
            "null_score": null,
            "start": start,
            "end": end,
        }

    def _windows(self, question: tf.Tensor, words: Words, rows: tf.Tensor) -> tuple[Windows, tf.Tensor]:
        """Returns windows, and the word of each token of all contexts, int32 [tokens]."""
        asked = self._text.tokenize(question)
        kept = longest_query(self._settings.max_query_length, self._max_seq_length)
        pieces = self._text.tokenize(words.strings)
        word = tf.cast(pieces.value_rowids(), tf.int32)
        context = tf.RaggedTensor.from_value_rowids(
            pieces.flat_values, tf.gather(tf.cast(words.text, tf.int64), word), nrows=rows
        )
        windows = divide(asked[:, :kept], context, self._ends, self._max_seq_length, self._settings.doc_stride)
        return windows, word

    def _best(self, windows: Windows, word: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the best range of words of each question: its score, -inf if there is none, first and last word."""
        count = tf.minimum(self._settings.n_best, tf.shape(logits)[1])
        begin_scores, begins = tf.math.top_k(tf.where(windows.is_best, logits[..., 0], -tf.float32.max), count)
        end_scores, ends = tf.math.top_k(tf.where(windows.is_part, logits[..., 1], -tf.float32.max), count)
        first, last = (_word(windows, word, place) for place in (begins, ends))
        fits = tf.gather(windows.is_best, begins, batch_dims=1)[:, :, tf.newaxis]
        fits &= tf.gather(windows.is_part, ends, batch_dims=1)[:, tf.newaxis]
        fits &= begins[:, :, tf.newaxis] <= ends[:, tf.newaxis]
        fits &= last[:, tf.newaxis] - first[:, :, tf.newaxis] < self._settings.max_answer_length
        scores = tf.where(fits, begin_scores[:, :, tf.newaxis] + end_scores[:, tf.newaxis], -float("inf"))
        # Of equal scores the first counts: window by window, then the better beginning, then the better end.
        scores = tf.reshape(scores, [-1, count * count])
        choice = tf.argmax(scores, axis=1, output_type=tf.int32)
        highest = tf.gather(scores, choice, batch_dims=1)
        best = tf.math.segment_max(highest, windows.question)
        number = tf.range(tf.size(highest))
        is_best = highest == tf.gather(best, windows.question)
        window = tf.math.segment_min(tf.where(is_best, number, tf.int32.max), windows.question)
        choice = tf.gather(choice, window)
        return (
            best,
            tf.gather(tf.gather(first, window), choice // count, batch_dims=1),
            tf.gather(tf.gather(last, window), choice % count, batch_dims=1),
        )


def _word(windows: Windows, word: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the words of places in windows, [w, k]; 0 where there are no words at all."""
    token = tf.gather(windows.token, places, batch_dims=1)
    return tf.gather(tf.concat([word, [0]], 0), token)


def _places(words: Words, first: tf.Tensor, last: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first character and the end of ranges of words; 0 where there are no words at all."""
    return tf.gather(tf.concat([words.begins, [0]], 0), first), tf.gather(tf.concat([words.ends, [0]], 0), last)


def _logits(network: Transformer, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the logits of both ends of an answer in each place, fp32 [w, S, 2]."""
    windows, length = (tf.shape(batch["input_ids"])[axis] for axis in (0, 1))

    def step(begin, found):
        part = {name: values[begin : begin + WINDOWS_AT_ONCE] for name, values in batch.items()}
        logits = tf.cast(network.task_outputs(part), tf.float32)
        return begin + WINDOWS_AT_ONCE, tf.concat([found, logits], axis=0)

    _, logits = tf.while_loop(
        lambda begin, _: begin < windows,
        step,
        [0, tf.zeros([0, length, 2])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None, 2])],
        parallel_iterations=1,
    )
    return logits
