"""The functions of an exported model by name: each is made by a builder, and a task adds its own to `BUILDERS`.

A builder takes a `Source` and returns a `Signature`, or None if the model lacks what it needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import tensorflow as tf

from tftrain.inference import MASK, TrainedModel, encoder_batch, most_probable
from tftrain.serving.text_graph import TextGraph


class Source(NamedTuple):
    """What signatures are made of.

    Attributes:
        model: with weights in the variant to export.
        text: turns strings into ids; None if there are no ops for the tokenizer.
        top_k: candidates of a masked token.
    """

    model: TrainedModel
    text: TextGraph | None
    top_k: int

    @property
    def tokens(self) -> tf.Tensor:
        """The tokens by id, string [tokens]."""
        return tf.constant(self.model.tokenizer.vocabulary.tokens)


@dataclass(frozen=True, eq=False)
class Signature:
    """A function of an exported model.

    Attributes:
        function: takes the inputs by name, and returns the outputs by name, floats as fp32.
        inputs: specifications with names.
    """

    function: Callable[..., dict[str, tf.Tensor]]
    inputs: tuple[tf.TensorSpec, ...]

    @property
    def takes_text(self) -> bool:
        """Whether an input is a string."""
        return any(spec.dtype == tf.string for spec in self.inputs)

    @cached_property
    def traced(self) -> Callable[..., dict[str, tf.Tensor]]:
        """The function as a graph, a concrete function of TensorFlow."""
        traced = tf.function(self.function, autograph=False)
        return traced.get_concrete_function(**{spec.name: spec for spec in self.inputs})


Builder = Callable[[Source], Signature | None]
TEXT = (tf.TensorSpec([None], tf.string, "text"),)
_IDS = tuple(tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "token_type_ids"))


def encode(source: Source) -> Signature:
    """Token ids to hidden states, and the pooled first token if the model has a pooler."""
    network, has_pooler = source.model.network, "pooler" not in source.model.missing

    def run(input_ids, input_mask=None, token_type_ids=None):
        hidden, pooled = network.encode(encoder_batch(input_ids, input_mask, token_type_ids))
        outputs = {"hidden_states": _fp32(hidden)}
        return outputs | ({"pooled": _fp32(pooled)} if has_pooler and pooled is not None else {})

    return Signature(run, _IDS[:1] if source.model.config.is_decoder else _IDS)


def masked_lm(source: Source) -> Signature | None:
    """Token ids to the logits of a masked token in each place."""
    network = source.model.network
    if source.model.config.is_decoder or "masked_lm" in source.model.missing:
        return None

    def run(input_ids, input_mask, token_type_ids):
        hidden, _ = network.encode(encoder_batch(input_ids, input_mask, token_type_ids))
        places = tf.range(tf.shape(input_ids)[1])[tf.newaxis]
        places = tf.tile(places, [tf.shape(input_ids)[0], 1])
        return {"logits": _fp32(network.masked_lm(hidden, places, network.word))}

    return Signature(run, _IDS)


def next_token(source: Source) -> Signature | None:
    """Token ids to the logits of the token behind each place."""
    network = source.model.network
    if not source.model.config.is_decoder:
        return None

    def run(input_ids):
        return {"logits": _fp32(network.logits(network.hidden_states({"input_ids": input_ids})))}

    return Signature(run, _IDS[:1])


def embeddings(source: Source) -> Signature | None:
    """Texts to vectors: of the first token, the mean over all tokens, and the pooled first token."""
    network, has_pooler = source.model.network, "pooler" not in source.model.missing
    if source.text is None or source.model.config.is_decoder:
        return None

    def run(text):
        ids, mask = source.text(text)
        hidden, pooled = network.encode(encoder_batch(ids, mask))
        hidden, weights = _fp32(hidden), tf.cast(mask, tf.float32)[:, :, tf.newaxis]
        mean = tf.reduce_sum(hidden * weights, axis=1) / tf.reduce_sum(weights, axis=1)
        return {"cls": hidden[:, 0], "mean": mean} | ({"pooled": _fp32(pooled)} if has_pooler else {})

    return Signature(run, TEXT)


def masked_tokens(source: Source) -> Signature | None:
    """Texts to the candidates of each masked token; a row of the outputs is one masked token of a text."""
    network = source.model.network
    if source.text is None or source.model.config.is_decoder or "masked_lm" in source.model.missing:
        return None
    mask_id = source.model.tokenizer.vocabulary.id(MASK)

    def run(text):
        ids, mask = source.text(text)
        hidden, _ = network.encode(encoder_batch(ids, mask))
        places = tf.cast(tf.where(ids == mask_id), tf.int32)  # [masked tokens, 2]
        rows = places[:, 0] * tf.shape(ids)[1] + places[:, 1]
        hidden = tf.reshape(hidden, [1, -1, hidden.shape[-1]])
        logits = network.masked_lm(hidden, rows[tf.newaxis], network.word)[0]
        best, probabilities = most_probable(logits, source.tokens.shape[0], source.top_k)
        named = {"tokens": tf.gather(source.tokens, best), "probabilities": probabilities}
        return {"text_index": places[:, 0], "position": places[:, 1], **named}

    return Signature(run, TEXT)


def next_tokens(source: Source) -> Signature | None:
    """Texts to the candidates of the token behind each."""
    network = source.model.network
    if source.text is None or not source.model.config.is_decoder:
        return None

    def run(text):
        ids, mask = source.text(text)
        x = network.hidden_states({"input_ids": ids})
        last = tf.gather(x, tf.reduce_sum(mask, axis=1) - 1, batch_dims=1)[:, tf.newaxis]
        best, probabilities = most_probable(network.logits(last)[:, 0], source.tokens.shape[0], source.top_k)
        return {"tokens": tf.gather(source.tokens, best), "probabilities": probabilities}

    return Signature(run, TEXT)


BUILDERS: dict[str, Builder] = {
    "encode": encode,
    "masked_lm": masked_lm,
    "next_token": next_token,
    "embeddings": embeddings,
    "masked_tokens": masked_tokens,
    "next_tokens": next_tokens,
}


def signatures(source: Source) -> dict[str, Signature]:
    """Returns the signatures that a model can have, by name."""
    made = {name: build(source) for name, build in BUILDERS.items()}
    return {name: signature for name, signature in made.items() if signature is not None}


def _fp32(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)
