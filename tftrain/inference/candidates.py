"""The tokens that a model finds most probable: for each masked token of a text, or after a text."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.config.predict import PredictFlags
from tftrain.inference.generation import Generator
from tftrain.inference.trained_model import Sample, TrainedModel, encoder_batch, most_probable, padded
from tftrain.tokenizer.vocabulary import Vocabulary, decode_bytes

_ROWS = 1024  # tokens whose logits exist at once
_IDS = tf.TensorSpec([None, None], tf.int32)


class Candidate(NamedTuple):
    """A token and its probability. A token of byte-level BPE is shown as text."""

    token: str
    probability: float


class Continuation(NamedTuple):
    """What a decoder predicts after a text: the next token, and the tokens that were appended; "" if none were."""

    candidates: list[Candidate]  # the next token
    text: str  # the tokens that were appended


def masked_tokens(model: TrainedModel, top_k: int) -> Callable[[Sequence[Sample]], list[list[list[Candidate]]]]:
    """Returns what predicts samples: `top_k` candidates of each masked token of each, the most probable first."""
    network, vocabulary = model.network, model.tokenizer.vocabulary

    @tf.function(input_signature=[_IDS, tf.TensorSpec([None], tf.int32)], autograph=False)
    def encode(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        hidden, _ = network.encode(encoder_batch(ids, tf.sequence_mask(lengths, tf.shape(ids)[1], tf.int32)))
        return tf.reshape(hidden, [1, -1, hidden.shape[-1]])

    @tf.function(autograph=False, reduce_retracing=True)
    def best(hidden: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return most_probable(network.masked_lm(hidden, rows[tf.newaxis])[0], len(vocabulary), top_k)

    def predict(samples: Sequence[Sample]) -> list[list[list[Candidate]]]:
        ids, lengths = padded([sample.ids for sample in samples], vocabulary.padding_id)
        rows = np.concatenate([sample.masks + number * ids.shape[1] for number, sample in enumerate(samples)])
        if not len(rows):
            return [[] for _ in samples]
        hidden = encode(ids, lengths)
        parts = (tf.constant(rows[begin : begin + _ROWS], tf.int32) for begin in range(0, len(rows), _ROWS))
        candidates = (each for part in parts for each in _named(vocabulary, *best(hidden, part)))
        return [[next(candidates) for _ in sample.masks] for sample in samples]

    return predict


def next_tokens(
    model: TrainedModel, settings: PredictFlags, show: Callable[[str], None] | None = None
) -> Callable[[Sequence[Sample]], list[Continuation]]:
    """Returns what predicts what follows samples, with a decoder: candidates, and tokens; see `Generator`."""
    generate = Generator(model, settings)

    def predict(samples: Sequence[Sample]) -> list[Continuation]:
        logits, texts = generate([sample.ids for sample in samples], show)
        candidates = _named(model.tokenizer.vocabulary, *most_probable(logits, logits.shape[1], settings.shown))
        return [Continuation(*each) for each in zip(candidates, texts, strict=True)]

    return predict


def _named(vocabulary: Vocabulary, best: tf.Tensor, probabilities: tf.Tensor) -> Iterator[list[Candidate]]:
    """Yields the candidates of each row of ids and probabilities, both [n, k]."""
    for ids, values in zip(best.numpy().tolist(), probabilities.numpy().tolist(), strict=True):
        tokens = [vocabulary.tokens[number] for number in ids]
        if vocabulary.tokenizer_type == "bpe":
            tokens = [decode_bytes([token]) for token in tokens]
        yield [Candidate(*each) for each in zip(tokens, values, strict=True)]
