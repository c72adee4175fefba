"""A function of an exported model: its inputs by name, what it is made of, and the names that its clients use."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import tensorflow as tf

from tftrain.architecture.describe import describe
from tftrain.inference.serving.text_graph import TextGraph
from tftrain.inference.trained_model import TrainedModel

Outputs = dict[str, tf.Tensor]
TEXT = (tf.TensorSpec([None], tf.string, "text"),)
PAIR = (*TEXT, tf.TensorSpec([None], tf.string, "text_pair"))
QUESTION = (tf.TensorSpec([None], tf.string, "question"), tf.TensorSpec([None], tf.string, "context"))
IDS = tuple(tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "token_type_ids"))
# What transformers calls inputs and outputs; its ids are int64.
_THEIRS = {"input_mask": "attention_mask", "hidden_states": "last_hidden_state", "pooled": "pooler_output"}
_OURS = {theirs: ours for ours, theirs in _THEIRS.items()}
_OF_PLACES = ("hidden_states", "logits", "start_logits", "end_logits")  # outputs that may have a value for each place
_SETTINGS = {"max_new_tokens": tf.int32, "temperature": tf.float32, "top_p": tf.float32, "seed": tf.int32}
GENERATED = (
    IDS[0],
    tf.TensorSpec([None], tf.int32, "lengths"),
    *(tf.TensorSpec([], dtype, name) for name, dtype in _SETTINGS.items()),
)


class ServedModel(NamedTuple):
    """What signatures are made of."""

    model: TrainedModel  # with weights in the variant to export
    text: TextGraph | None  # turns strings into ids; None if there are no ops for the tokenizer
    top_k: int  # candidates of a masked token
    null_score_threshold: float | None = None  # None: every question has an answer
    input_names: str = "tftrain"  # whose names and types functions of token ids have, or "transformers"

    @property
    def has_pooler(self) -> bool:
        """Whether there is a pooled first token."""
        return describe(self.model.config).head("pooler") is not None and "pooler" not in self.model.missing

    @property
    def has_masked_lm(self) -> bool:
        """Whether an encoder predicts masked tokens."""
        return not (self.model.config.is_fine_tuned or "masked_lm" in self.model.missing)


@dataclass(frozen=True, eq=False)
class Signature:
    """A function of an exported model, which takes inputs and returns outputs by name, floats as fp32."""

    function: Callable[..., Outputs]
    inputs: tuple[tf.TensorSpec, ...]

    @property
    def is_of_ids(self) -> bool:
        """Whether it maps token ids to numbers in one pass: what an ONNX file can hold, and comparisons compare."""
        return not self.takes_text and self.inputs != GENERATED

    @property
    def takes_text(self) -> bool:
        """Whether an input is a string."""
        return any(spec.dtype == tf.string for spec in self.inputs)

    @cached_property
    def traced(self) -> Callable[..., Outputs]:
        """The function as a graph, a concrete function of TensorFlow."""
        traced = tf.function(self.function, autograph=False)
        return traced.get_concrete_function(**{spec.name: spec for spec in self.inputs})


def with_a_place(ids: tf.Tensor) -> tf.Tensor:
    """Returns token ids [b, S] with a place if they have none: without one, a model can't tell sizes from elements."""
    return tf.pad(ids, [[0, 0], [0, tf.maximum(1 - tf.shape(ids)[1], 0)]])


def on_ids(source: ServedModel, run: Callable[..., Outputs]) -> Signature:
    """Returns the signature of a function of token ids, with names and types as `source.input_names` says."""
    named, config = _THEIRS if source.input_names == "transformers" else {}, source.model.config
    dtype, is_of_tokens = tf.int64 if named else tf.int32, config.is_causal and not config.is_fine_tuned
    # Padding and token types only where they mean something.
    used = IDS[: 1 if is_of_tokens else 3 if config.family.token_types else 2]
    inputs = tuple(tf.TensorSpec(spec.shape, dtype, named.get(spec.name, spec.name)) for spec in used)

    def renamed(*values: tf.Tensor, **given: tf.Tensor) -> Outputs:
        given |= dict(zip((spec.name for spec in inputs), values, strict=False))
        length = tf.shape(given["input_ids"])[1]
        outputs = run(**{_OURS.get(name, name): with_a_place(tf.cast(ids, tf.int32)) for name, ids in given.items()})
        return {
            named.get(name, name): x[:, :length] if name in _OF_PLACES and x.shape[1] is None else x
            for name, x in outputs.items()
        }

    return Signature(renamed, inputs)


def with_own_names(function: Callable, signature: Signature) -> Callable:
    """Returns a function of arrays of a signature on token ids that has this project's names and int32 inputs."""

    def call(**batch: Any) -> dict[str, Any]:
        given = {x.name: batch[_OURS.get(x.name, x.name)].astype(x.dtype.as_numpy_dtype) for x in signature.inputs}
        return {_OURS.get(name, name): value for name, value in function(**given).items()}

    return call
