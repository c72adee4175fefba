"""The weights of a model, read one tensor at a time, whatever files they are in."""

import abc
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tftrain.architecture.describe import describe
from tftrain.architecture.parts import Variable
from tftrain.config.fields import implementations
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.train import ModelConfig
from tftrain.formats.errors import FormatError
from tftrain.formats.links import Link
from tftrain.formats.tokenizer import Tokenizer

# The parts of an encoder that files may lack, by the first part of a variable's name.
HEADS = ("masked_lm", "pooler", "next_sentence", "classifier")
# What changes neither a variable nor an output: it says how a model computes, or how it is trained.
FREE_FLAGS = (
    *implementations(ModelConfig),
    "ln_dtype",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
)
# fp32 has every value of these.
_EXACT = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_MAX_NAMED = 5


class Weights(abc.ABC):
    """A model's weights in files, under the names of this project.

    Attributes:
        path: of the files, for messages.
        model: sizes and parts of the model; its vocab_size is the number of rows of the token embedding.
        shapes: the shape of each variable by name, in the order of the model. Heads may be missing.
        tokenizer: None if the files have none.
        notes: what a user must know of the model in these files, a line each.
        fine_tuning: the flags that a fine-tuned model was trained with; None if they are not known.
        max_seq_length: likewise, the most tokens of its examples.
    """

    path: str
    model: ModelConfig
    shapes: Mapping[str, tuple[int, ...]]
    tokenizer: Tokenizer | None = None
    notes: tuple[str, ...] = ()
    fine_tuning: FineTuningConfig | None = None
    max_seq_length: int | None = None

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32.

        Raises:
            FormatError, CheckpointError: it can't be read.
        """

    @property
    def missing(self) -> tuple[str, ...]:
        """The heads of the model that the files lack."""
        return tuple(head for head in heads_of(self.model) if head not in self.parts)

    @property
    def parts(self) -> set[str]:
        """The heads that the files have, and "" for the rest, see `part_of`."""
        return {part_of(name) for name in self.shapes}


class LinkedWeights(Weights):
    """Weights in files of another library."""

    def __init__(
        self,
        path: str,
        model: ModelConfig,
        links: Iterable[Link],
        read: Callable[[str], np.ndarray],
        tokenizer: Tokenizer | None = None,
    ):
        """Reads no tensor yet.

        Args:
            path, model, tokenizer: see `Weights`.
            links: of the tensors that are there.
            read: returns a tensor, given the other library's name.
        """
        self.path, self.model, self.tokenizer = path, model, tokenizer
        self._links = {name: link for link in links for name in link.ours}
        every = describe(model).variables()
        self.shapes = {each.name: each.shape for each in every if each.name in self._links}
        self._read, self._last = read, ("", {})

    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32. A tensor with several variables is read once if they are read in a row."""
        link = self._links[name]
        if self._last[0] != link.theirs:
            self._last = ("", {})  # Before the next tensor is in memory.
            tensor = as_fp32(self._read(link.theirs), link.theirs, self.path)
            parts = dict(zip(link.ours, link.split(tensor), strict=True))
            self._last = (link.theirs, parts)
        parts = self._last[1]
        value = np.ascontiguousarray(parts.pop(name))
        if not parts:
            self._last = ("", {})
        return value


class WeightsWithout(Weights):
    """Weights without one of their heads."""

    def __init__(self, weights: Weights, head: str):
        """Takes the weights; `head` is one of `HEADS`."""
        self.path, self.model, self.tokenizer, self.notes = (
            weights.path,
            weights.model,
            weights.tokenizer,
            weights.notes,
        )
        self.shapes = {name: shape for name, shape in weights.shapes.items() if part_of(name) != head}
        self._weights = weights

    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32; see `Weights.read`."""
        return self._weights.read(name)


class WatchedWeights(Weights):
    """Weights that say when a variable is read."""

    def __init__(self, weights: Weights, watch: Callable[[], object]):
        """Calls `watch` for each variable that is read from now on."""
        self.path, self.model, self.shapes = weights.path, weights.model, weights.shapes
        self.tokenizer, self.notes = weights.tokenizer, weights.notes
        self._weights, self._watch = weights, watch

    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32; see `Weights.read`."""
        self._watch()
        return self._weights.read(name)


def as_fp32(tensor: np.ndarray, name: str, path: str) -> np.ndarray:
    """Returns a tensor in fp32, without rounding.

    Raises:
        FormatError: fp32 can't hold its values.
    """
    if tensor.dtype not in _EXACT:
        raise FormatError(f"{path}: {name} is {tensor.dtype}; expected float32, float16 or bfloat16")
    return tensor.astype(np.float32, copy=False)


def part_of(name: str) -> str:
    """Returns the part of a model that a variable belongs to: one of `HEADS`, or "" for what every file has."""
    first = name.partition("/")[0]
    return first if first in HEADS else ""


def heads_of(model: ModelConfig) -> tuple[str, ...]:
    """Returns the heads that a model has beside the tied output layer."""
    has = {part_of(each.name) for each in describe(model).variables()}
    return tuple(head for head in HEADS if head in has)


def needed(model: ModelConfig, heads: Collection[str]) -> list[Variable]:
    """Returns the variables of a model with some of its heads only."""
    return [each for each in describe(model).variables() if part_of(each.name) in ("", *heads)]


def check_tensors(
    path: str, links: Iterable[Link], found: Mapping[str, tuple[int, ...]], ignored: Collection[str] = ()
) -> list[Link]:
    """Compares the tensors of a file with those that a model has.

    Args:
        path: of the file, for messages.
        links: of all tensors of the model.
        found: the shape of each tensor in the file by name.
        ignored: names of tensors that may be there and hold nothing of the model.

    Returns:
        The links of the tensors that are there. Only whole heads may be missing.

    Raises:
        FormatError: a tensor is unknown, missing, or has another shape.
    """
    links = list(links)
    there = [link for link in links if link.theirs in found]
    parts = {part_of(name) for link in there for name in link.ours}
    missing = [link.theirs for link in links if link.theirs not in found and _belongs(link, {"", *parts})]
    if missing:
        raise FormatError(f"{path}: {listed(missing)} missing; expected every tensor of the model that config states")
    unknown = sorted(set(found) - {link.theirs for link in links} - set(ignored))
    if unknown:
        raise FormatError(f"{path}: {listed(unknown)} unknown: not a tensor of this model")
    for link in there:
        if tuple(found[link.theirs]) != link.shape:
            given, expected = list(found[link.theirs]), list(link.shape)
            raise FormatError(f"{path}: {link.theirs} is {given}, expected {expected} by the sizes of the model")
    return there


def _belongs(link: Link, parts: set[str]) -> bool:
    return any(part_of(name) in parts for name in link.ours)


def listed(names: Collection[str]) -> str:
    """Returns names for a message with a verb: "a, b and 7 more are"."""
    names = list(names)
    shown = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def structure(model: ModelConfig) -> dict[str, Any]:
    """Returns the flags of a model that decide its variables and outputs."""
    fields = model.__dataclass_fields__
    return {name: getattr(model, name) for name in fields if name not in FREE_FLAGS}
