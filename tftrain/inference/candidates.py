"""The tokens that a model finds most probable: for each masked token of a text, or after a text."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.inference.trained_model import Sample, TrainedModel, encoder_batch, most_probable, padded
from tftrain.input.vocabulary import Vocabulary, decode_bytes

# Logits of so many tokens exist at once.
_ROWS = 1024
_IDS = tf.TensorSpec([None, None], tf.int32)


class Candidate(NamedTuple):
    """A token and its probability. A token of byte-level BPE is shown as text."""

    token: str
    probability: float


class Continuation(NamedTuple):
    """What a decoder predicts after a text.

    Attributes:
        candidates: for the next token.
        text: the tokens that were appended; "" if none were.
    """

    candidates: list[Candidate]
    text: str


class MaskedTokens:
    """Predicts the masked tokens of samples."""

    def __init__(self, model: TrainedModel, top_k: int):
        """Traces nothing yet; `top_k` is the number of candidates."""
        network, self._vocabulary = model.network, model.tokenizer.vocabulary
        tokens = len(self._vocabulary)

        @tf.function(input_signature=[_IDS, tf.TensorSpec([None], tf.int32)], autograph=False)
        def encode(ids, lengths):
            hidden, _ = network.encode(encoder_batch(ids, tf.sequence_mask(lengths, tf.shape(ids)[1], tf.int32)))
            return tf.reshape(hidden, [1, -1, hidden.shape[-1]])

        @tf.function(autograph=False, reduce_retracing=True)
        def predict(hidden, rows):
            return most_probable(network.masked_lm(hidden, rows[tf.newaxis])[0], tokens, top_k)

        self._encode, self._predict = encode, predict

    def __call__(self, samples: Sequence[Sample]) -> list[list[list[Candidate]]]:
        """Returns the candidates of each masked token of each sample, the most probable first."""
        ids, lengths = padded([sample.ids for sample in samples])
        rows = np.concatenate([sample.masks + number * ids.shape[1] for number, sample in enumerate(samples)])
        if not len(rows):
            return [[] for _ in samples]
        hidden = self._encode(ids, lengths)
        found = iter(
            candidates
            for begin in range(0, len(rows), _ROWS)
            for candidates in named(
                self._vocabulary, *self._predict(hidden, tf.constant(rows[begin : begin + _ROWS], tf.int32))
            )
        )
        return [[next(found) for _ in sample.masks] for sample in samples]


class NextTokens:
    """Predicts what follows samples, with a decoder."""

    def __init__(self, model: TrainedModel, top_k: int, max_new_tokens: int):
        """Traces nothing yet.

        Args:
            model: a decoder.
            top_k: number of candidates.
            max_new_tokens: tokens to append, the most probable one each time; fewer if the end token comes.
        """
        network, self._vocabulary, self._longest = model.network, model.tokenizer.vocabulary, model.longest
        self._new = max_new_tokens
        tokens = len(self._vocabulary)

        @tf.function(input_signature=[_IDS, tf.TensorSpec([None], tf.int32)], autograph=False)
        def predict(ids, lengths):
            x = network.hidden_states({"input_ids": ids})
            x = tf.gather(x, lengths - 1, batch_dims=1)[:, tf.newaxis]
            return most_probable(network.logits(x)[:, 0], tokens, top_k)

        self._predict = predict

    def __call__(self, samples: Sequence[Sample]) -> list[Continuation]:
        """Returns what follows each sample."""
        texts = [sample.ids for sample in samples]
        best, probabilities = self._predict(*padded(texts))
        candidates = list(named(self._vocabulary, best, probabilities))
        new, going = [[] for _ in samples], list(range(len(samples)))
        for step in range(self._new):
            best = best if step == 0 else self._predict(*padded([texts[number] for number in going]))[0]
            nexts = dict(zip(going, best.numpy()[:, 0].tolist(), strict=True))
            going = [number for number in going if nexts[number] != self._vocabulary.end_id]
            if not going:
                break
            for number in going:
                new[number].append(nexts[number])
                texts[number] = self._fitting(np.append(texts[number], np.int32(nexts[number])))
        return [Continuation(each, self._vocabulary.decode(ids)) for each, ids in zip(candidates, new, strict=True)]

    def _fitting(self, ids: np.ndarray) -> np.ndarray:
        """Returns the last tokens, as many as the model reads."""
        return ids[int(max(len(ids) - self._longest, 0)) :]


def named(vocabulary: Vocabulary, best: tf.Tensor, probabilities: tf.Tensor) -> Iterator[list[Candidate]]:
    """Yields the candidates of each row of ids and probabilities, both [n, k]."""
    show = _text_of_bytes if vocabulary.tokenizer_type == "bpe" else str
    for ids, values in zip(best.numpy().tolist(), probabilities.numpy().tolist(), strict=True):
        yield [Candidate(show(vocabulary.tokens[number]), value) for number, value in zip(ids, values, strict=True)]


def _text_of_bytes(token: str) -> str:
    return decode_bytes([token])
