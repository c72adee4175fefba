"""The variables of a model: names and shapes, in the order in which `tftrain.model` makes them.

A test compares them with those of the models.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tftrain.config import ModelConfig


class Variable(NamedTuple):
    """A variable.

    Attributes:
        name: its global name.
        shape: of the whole variable.
        axis: the axis that tensor parallel ranks divide; None: every rank has the whole.
        unit: number of neighbouring elements along the axis that stay on one rank.
        is_norm: whether `ln_dtype` says its dtype.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None = None
    unit: int = 1
    is_norm: bool = False


def variables(model: ModelConfig, vocab_size: int) -> list[Variable]:
    """Returns the variables of an encoder with the heads of its task, or of a decoder.

    Args:
        model: the family and the sizes.
        vocab_size: rows of the word embedding (`model.vocab_size` may be None).
    """
    return list(_variables(model, vocab_size))


def _variables(model: ModelConfig, vocab_size: int) -> Iterator[Variable]:
    width, inner, head = model.hidden_size, model.feed_forward_size, model.head_size
    yield Variable("embeddings/word", (vocab_size, width), 0)
    if model.position_embedding == "learned":
        yield Variable("embeddings/position", (model.max_position_embeddings, width))
    if model.has_token_types:
        yield Variable("embeddings/token_type", (model.type_vocab_size, width))
    if not model.is_pre_norm:
        yield from _norm("embeddings/norm", width)
    for layer in range(model.num_hidden_layers):
        attention, feed_forward = (f"layer_{layer:02d}/{part}" for part in ("attention", "feed_forward"))
        for name in ("query", "key", "value"):
            bias = name != "key" or model.use_bias_in_keys
            yield from _dense(f"{attention}/{name}", width, width, axis=1, unit=head, bias=bias)
        yield from _dense(f"{attention}/output", width, width, axis=0, unit=head)
        yield from _norm(f"{attention}/norm", width)
        for name in ("gate", "up") if model.activation == "geglu" else ("up",):
            yield from _dense(f"{feed_forward}/{name}", width, inner, axis=1)
        yield from _dense(f"{feed_forward}/down", inner, width, axis=0)
        yield from _norm(f"{feed_forward}/norm", width)
    if model.is_pre_norm:
        yield from _norm("final_norm", width)
    if model.is_decoder:
        return
    if not model.is_fine_tuned:
        yield from _dense("masked_lm/transform", width, width)
        yield from _norm("masked_lm/norm", width)
        yield Variable("masked_lm/bias", (vocab_size,), 0)
    if model.has_pooler:
        yield from _dense("pooler", width, width)
    if not model.is_fine_tuned:
        yield from _dense("next_sentence", width, 2)
    elif model.outputs:
        yield from _dense("classifier", width, model.outputs)


def _dense(
    name: str, inputs: int, outputs: int, axis: int | None = None, unit: int = 1, bias: bool = True
) -> Iterator[Variable]:
    yield Variable(f"{name}/kernel", (inputs, outputs), axis, unit)
    if bias:
        # The bias of a layer whose inputs are divided is added once, to the sum.
        yield Variable(f"{name}/bias", (outputs,), 0 if axis == 1 else None, unit if axis == 1 else 1)


def _norm(name: str, width: int) -> Iterator[Variable]:
    yield Variable(f"{name}/gamma", (width,), is_norm=True)
    yield Variable(f"{name}/beta", (width,), is_norm=True)
