"""What follows texts, token by token, with a decoder that keeps the keys and values of the tokens before."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tftrain.config.predict import PredictFlags
from tftrain.inference.trained_model import TrainedModel, padded
from tftrain.model.key_value_cache import CachedDecoder
from tftrain.tokenizer.vocabulary import Vocabulary


def drawn(
    logits: tf.Tensor, uniform: tf.Tensor, temperature: float, top_k: int | None = None, top_p: float = 1.0
) -> tf.Tensor:
    """Draws a class of each row of logits, fp32 [n, classes], with random numbers in [0, 1), fp32 [n]: int32 [n].

    `Sampling` describes the others; the temperature is above 0.
    """
    classes = logits.shape[1]
    values, order = tf.math.top_k(logits / temperature, min(top_k or classes, classes))
    probabilities = tf.nn.softmax(values)
    before = tf.cumsum(probabilities, axis=1, exclusive=True)
    ends = tf.cumsum(tf.where(before < top_p, probabilities, 0.0), axis=1)
    # The classes that top_p leaves out have the end of the last one that it keeps, which lies above every draw.
    passed = tf.cast(ends <= uniform[:, tf.newaxis] * ends[:, -1:], tf.int32)
    return tf.gather(order, tf.reduce_sum(passed, axis=1), batch_dims=1)


class Generator:
    """Appends tokens to texts with a decoder: `most` of them, fewer if an end token or a stop string comes."""

    def __init__(self, model: TrainedModel, settings: PredictFlags):
        self._decoder, self._vocabulary = CachedDecoder(model.network), model.tokenizer.vocabulary
        self._end_ids, self._longest, self._settings = model.tokenizer.end_ids, model.config.longest_sequence, settings
        self._tokens, self._capacity, self._texts = len(self._vocabulary), 0, 0

        @tf.function(autograph=False, reduce_retracing=True)
        def choose(logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
            if not settings.temperature:
                return tf.argmax(logits, axis=1, output_type=tf.int32)
            return drawn(logits, uniform, settings.temperature, settings.top_k, settings.top_p)

        self._choose = choose

    def __call__(
        self, texts: Sequence[np.ndarray], show: Callable[[str], None] | None = None
    ) -> tuple[tf.Tensor, list[str]]:
        """Continues texts, int32 [n] each.

        Args:
            show: called with each new part of the first text's continuation as soon as it is known.

        Returns:
            The logits of the first token after each text, [texts, tokens], fp32; and the continuations.
        """
        logits = first = self._read(texts)
        draws = [np.random.default_rng([self._settings.seed, self._texts + number]) for number in range(len(texts))]
        self._texts += len(texts)
        continuations = [_Continuation(self._vocabulary, self._settings.stop, self._end_ids) for _ in texts]
        for step in range(self._settings.max_new_tokens):
            if step:
                logits = self._read_more(texts)
            chosen = self._choose(logits, np.array([each.random() for each in draws], np.float32)).numpy()
            texts = [np.append(text, token) for text, token in zip(texts, chosen, strict=True)]
            for continuation, token in zip(continuations, chosen.tolist(), strict=True):
                continuation.add(token)
            if show:
                show(continuations[0].new_text())
            if all(each.ended for each in continuations):
                break
        return first, [each.text() for each in continuations]

    def _read(self, texts: Sequence[np.ndarray]):
        """Reads the ends of texts, as much of each as the model reads."""
        texts = [text[int(max(len(text) - self._longest, 0)) :] for text in texts]
        ids, lengths = padded(texts)
        self._capacity = int(min(ids.shape[1] + self._settings.max_new_tokens, self._longest))
        return self._decoder.read(ids, lengths, self._capacity)[:, : self._tokens]

    def _read_more(self, texts: Sequence[np.ndarray]):
        """Reads the last token of each text; when a text is longer than the model reads, its end from the beginning."""
        lengths = np.array([len(text) for text in texts], np.int32)
        if lengths.max() > self._capacity:
            return self._read(texts)
        last = np.array([text[-1] for text in texts], np.int32)
        return self._decoder.read_more(last, lengths - 1, self._capacity)[:, : self._tokens]


class _Continuation:
    """The new tokens of a text, up to an end token or a stop string."""

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str], end_ids: Sequence[int]):
        self._vocabulary, self._stop, self._end_ids = vocabulary, stop, end_ids
        self._ids, self._shown, self.ended = [], 0, False

    def add(self, token: int) -> None:
        if token in self._end_ids:
            self.ended = True
        if not self.ended:
            self._ids.append(token)
            self.ended = bool(self._stop) and any(stop in self._whole() for stop in self._stop)

    def text(self) -> str:
        whole = self._whole()
        return whole[: min((place for stop in self._stop if (place := whole.find(stop)) >= 0), default=len(whole))]

    def new_text(self) -> str:
        """Returns what is new since the last call, without what may begin a stop string or a character."""
        text = self.text()
        if not self.ended:
            text = text.rstrip("\ufffd")
            text = text[: len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)]
        begin, self._shown = self._shown, max(self._shown, len(text))
        return text[begin:]

    def _whole(self):
        return self._vocabulary.decode(self._ids)


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of a text that is the beginning of a stop string."""
    return next((n for n in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:n])), 0)
