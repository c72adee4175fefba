"""What a function of an exported model is, and what it is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import tensorflow as tf

from tftrain.inference.serving.text_graph import TextGraph
from tftrain.inference.trained_model import TrainedModel


class Source(NamedTuple):
    """What signatures are made of.

    Attributes:
        model: with weights in the variant to export.
        text: turns strings into ids; None if there are no ops for the tokenizer.
        top_k: candidates of a masked token.
        null_score_threshold: of answers; None: every question has an answer.
    """

    model: TrainedModel
    text: TextGraph | None
    top_k: int
    null_score_threshold: float | None = None

    @property
    def ids(self) -> tuple[tf.TensorSpec, ...]:
        """The inputs of functions of token ids; a decoder takes no padding, and not all families have token types."""
        config = self.model.config
        return IDS[: 1 if config.is_decoder else 3 if config.has_token_types else 2]

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
IDS = tuple(tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "token_type_ids"))


def fp32(x: tf.Tensor) -> tf.Tensor:
    """Returns an output as fp32."""
    return tf.cast(x, tf.float32)
