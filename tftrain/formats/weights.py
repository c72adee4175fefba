"""The weights of a model, read one tensor at a time, whatever files they are in."""

import abc
import dataclasses
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tftrain.architecture.describe import describe
from tftrain.architecture.shard import VariableShard
from tftrain.config.fields import implementations
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.files.errors import FormatError
from tftrain.formats.links import Link
from tftrain.host.text import listed as all_listed
from tftrain.tokenizer.tokenizer_files import Tokenizer

PROJECTION = "projection"  # the dense layer of vectors
# The parts of a model that files may lack, by the first part of a variable's name.
HEADS = ("masked_lm", "pooler", "next_sentence", "classifier", PROJECTION)
# What changes neither a variable nor an output: it says how a model computes, or how it is trained.
_TRAINED_WITH = ("ln_dtype", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
FREE_FLAGS = (*implementations(ModelConfig), *_TRAINED_WITH)
_EXACT = tuple(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16)))  # fp32 has every value of these.
_MAX_NAMED = 5


class Weights(abc.ABC):
    """A model's weights in files, under the names of this project."""

    path: str  # where the files are, for messages
    model: ModelConfig  # sizes and parts of the model; its vocab_size is the number of rows of the token embedding
    # The shape of each variable by name, in the order of the model. Heads may be missing.
    shapes: Mapping[str, tuple[int, ...]]
    tokenizer: Tokenizer | None = None  # None if the files have none
    notes: tuple[str, ...] = ()  # what a user must know of the model in these files, a line each
    fine_tuning: FineTuningConfig | None = None  # flags that a fine-tuned model was trained with, if they are known
    max_seq_length: int | None = None  # likewise, the most tokens of its examples

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32; raises a FormatError or a CheckpointError if it can't be read."""

    def shard(self, shard: VariableShard) -> np.ndarray | None:
        """Returns a shard of a variable, fp32, see `read`; None if the files lack the variable."""
        return shard.take(self.read(shard.name)) if shard.name in self.shapes else None

    @property
    def longest(self) -> int:
        """Most tokens of a text for other libraries: as in training, or as many as the model has positions."""
        return self.max_seq_length or self.model.max_position_embeddings

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
        tokenizer: Tokenizer | None,
    ):
        """Takes the links of the tensors that are there, and what reads a tensor, given the other library's name."""
        self.path, self.model, self.tokenizer = path, model, tokenizer
        self._links = {name: link for link in links for name in link.ours}
        self.shapes = {each.name: each.shape for each in describe(model).variables() if each.name in self._links}
        self._read, self._last = read, ("", {})

    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32. A tensor with several variables is read once if they are read in a row."""
        link = self._links[name]
        if self._last[0] != link.theirs:
            self._last = ("", {})  # Before the next tensor is in memory.
            tensor = self._read(link.theirs)
            if tensor.dtype not in _EXACT:
                fault = f"{link.theirs} is {tensor.dtype}; expected float32, float16 or bfloat16"
                raise FormatError(f"{self.path}: {fault}")
            values = link.split(tensor.astype(np.float32, copy=False))
            self._last = (link.theirs, dict(zip(link.ours, values, strict=True)))
        parts = self._last[1]
        value = np.ascontiguousarray(parts.pop(name))
        if not parts:
            self._last = ("", {})
        return value


class DerivedWeights(Weights):
    """Variables in the place of other weights: `read` returns each in `shapes`, by default as the others do."""

    def __init__(
        self, weights: Weights, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], np.ndarray] | None = None
    ):
        self.path, self.model = weights.path, weights.model
        self.tokenizer, self.notes = weights.tokenizer, weights.notes
        self.fine_tuning, self.max_seq_length = weights.fine_tuning, weights.max_seq_length
        self.shapes, self._read = shapes, read or weights.read

    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32; see `Weights.read`."""
        return self._read(name)


def without(weights: Weights, head: str) -> Weights:
    """Returns weights without one of their heads."""
    return DerivedWeights(weights, {name: shape for name, shape in weights.shapes.items() if part_of(name) != head})


def reordered(weights: Weights, labels: tuple[str, ...], head: str, rows: Sequence[int]) -> Weights:
    """Returns weights with other names or another order of classes: class i is number `rows[i]` of the weights' own."""

    def read(name: str) -> np.ndarray:
        value = weights.read(name)
        return np.ascontiguousarray(value[..., list(rows)]) if name.rpartition("/")[0] == head else value

    derived = DerivedWeights(weights, weights.shapes, read)
    derived.model = dataclasses.replace(weights.model, labels=labels)
    return derived


def with_initial_heads(weights: Weights, heads: Collection[str], seed: int) -> Weights:
    """Returns weights with heads that they lack: initial values, which depend on the seed and the variable's name."""
    parts = {"", *heads, *weights.parts}
    every = {each.name: each for each in describe(weights.model).variables() if part_of(each.name) in parts}

    def read(name: str) -> np.ndarray:
        if name in weights.shapes:
            return weights.read(name)
        shape, constant = every[name].shape, every[name].initial
        if constant is None:
            return truncated_normal(shape, weights.model.initializer_range, seed, name)
        return np.full(shape, constant, np.float32)

    return DerivedWeights(weights, {name: each.shape for name, each in every.items()}, read)


def truncated_normal(shape: tuple[int, ...], stddev: float, seed: int, name: str) -> np.ndarray:
    """Returns draws from a normal distribution without those beyond twice its standard deviation, fp32."""
    generator = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
    values = generator.standard_normal(shape, np.float32)
    while (beyond := np.abs(values) > 2).any():
        values[beyond] = generator.standard_normal(int(beyond.sum()), np.float32)
    return values * np.float32(stddev)


def tensors_of(weights: Weights, links: Iterable[Link]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and values of another library's tensors, one in memory at a time."""
    for link in links:
        yield link.theirs, link.join([weights.read(each) for each in link.ours])


def part_of(name: str) -> str:
    """Returns the part of a model that a variable belongs to: one of `HEADS`, or "" for what every file has."""
    first = name.partition("/")[0]
    return first if first in HEADS else ""


def heads_of(model: ModelConfig) -> tuple[str, ...]:
    """Returns the heads that a model has beside the tied output layer."""
    has = {part_of(each.name) for each in describe(model).variables()}
    return tuple(head for head in HEADS if head in has)


def require_heads(weights: Weights, heads: Iterable[str], name: str) -> None:
    """Raises a FormatError if weights lack a head that a class of another library has."""
    if lacking := [head for head in heads if head not in weights.parts]:
        raise FormatError(
            f"{weights.path}: it lacks output heads ({', '.join(lacking)}), which {name} needs; --init_missing "
            "adds what is missing, with initial values"
        )


def check_tensors(
    path: str, links: Iterable[Link], shapes: Mapping[str, tuple[int, ...]], ignored: Collection[str] = ()
) -> list[Link]:
    """Compares the tensors of a file with those that a model has.

    Args:
        links: of all tensors of the model.
        shapes: the shape of each tensor in the file by name.
        ignored: names of tensors that may be there and hold nothing of the model.

    Returns:
        The links of the tensors that are there. Only whole heads may be missing.

    Raises:
        FormatError: a tensor is unknown, missing, or has another shape.
    """
    links = list(links)
    there = [link for link in links if link.theirs in shapes]
    parts = {"", *(part_of(name) for link in there for name in link.ours)}
    absent = [link for link in links if link.theirs not in shapes]
    if missing := [link.theirs for link in absent if any(part_of(name) in parts for name in link.ours)]:
        raise FormatError(f"{path}: {listed(missing)} missing; expected every tensor of the model that config states")
    if unknown := sorted(set(shapes) - {link.theirs for link in links} - set(ignored)):
        raise FormatError(f"{path}: {listed(unknown)} unknown: not a tensor of this model")
    for link in there:
        if tuple(shapes[link.theirs]) != link.shape:
            actual, expected = list(shapes[link.theirs]), list(link.shape)
            raise FormatError(f"{path}: {link.theirs} is {actual}, expected {expected} by the sizes of the model")
    return there


def listed(names: Collection[str]) -> str:
    """Returns names for a message with a verb: "a, b and 7 more are"."""
    return f"{all_listed(list(names), _MAX_NAMED)} {'is' if len(names) == 1 else 'are'}"


def structure(model: ModelConfig) -> dict[str, Any]:
    """Returns the flags of a model that decide its variables and outputs."""
    fields = model.__dataclass_fields__
    return {name: getattr(model, name) for name in fields if name not in FREE_FLAGS}
