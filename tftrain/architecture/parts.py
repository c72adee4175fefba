"""The parts of a transformer as data: shapes, names of variables, and what tensor parallel ranks divide.

Names look like `layer_00/attention/query/kernel`. A part yields its variables, and what it is made of, in the order in
which `tftrain.model` makes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tftrain.families.rope import RopeScaling


class Variable(NamedTuple):
    """A variable."""

    name: str  # its global name
    shape: tuple[int, ...]  # the whole variable's
    axis: int | None = None  # the axis that tensor parallel ranks divide; None: every rank has the whole
    unit: int = 1  # number of neighbouring elements along the axis that stay on one rank
    is_norm: bool = False  # whether `ln_dtype` says its dtype
    # Whether it has weight decay, and a trust ratio of its own where the update rule adapts layers; biases and the
    # parameters of norms have neither.
    decays: bool = True
    is_hidden_matrix: bool = False  # whether it is a kernel of a block, which Muon orthogonalizes
    initial: float | None = None  # what all its elements begin with; None: they are drawn
    scale: float = 1.0  # factor of the standard deviation of the draws

    @property
    def size(self) -> int:
        """Number of elements of the whole variable."""
        return prod(self.shape)


@dataclass(frozen=True)
class DenseSpec:
    """An affine map of the last axis, y = x W + b."""

    inputs: int  # width over all ranks
    outputs: int  # likewise
    bias: bool = True  # whether there is b
    # What tensor parallel ranks divide: "outputs", with the bias; or "inputs", so that each rank computes its part of a
    # sum, to which the bias is added once; None: nothing.
    divided: str | None = None
    unit: int = 1  # number of neighbouring inputs or outputs that stay on one rank
    scale: float = 1.0  # factor of the initial standard deviation of W

    def variables(self, name: str) -> Iterator[Variable]:
        """Yields the kernel, [inputs, outputs], and the bias."""
        by_outputs = self.divided == "outputs"
        axis = {"outputs": 1, "inputs": 0, None: None}[self.divided]
        yield Variable(f"{name}/kernel", (self.inputs, self.outputs), axis, self.unit, scale=self.scale)
        if self.bias:
            unit = self.unit if by_outputs else 1
            yield Variable(f"{name}/bias", (self.outputs,), 0 if by_outputs else None, unit, decays=False, initial=0.0)


@dataclass(frozen=True)
class NormSpec:
    """A norm over `width` elements."""

    width: int
    kind: str = "layer"  # or "rms"
    shift: bool = True  # whether there is a shift beside the scale; an RMSNorm has none

    def variables(self, name: str) -> Iterator[Variable]:
        """Yields gamma and, if there is a shift, beta; [width]."""
        for leaf, initial in {"gamma": 1.0, "beta": 0.0}.items() if self.shift else (("gamma", 1.0),):
            yield Variable(f"{name}/{leaf}", (self.width,), is_norm=True, decays=False, initial=initial)


@dataclass(frozen=True)
class TableSpec:
    """An embedding of `rows` vectors; tensor parallel ranks may divide the rows."""

    rows: int
    width: int
    divided: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * self.width

    def variables(self, name: str) -> Iterator[Variable]:
        """Yields the table, [rows, width]."""
        yield Variable(name, (self.rows, self.width), 0 if self.divided else None)


@dataclass(frozen=True)
class BiasSpec:
    """A bias of its own, [size], such as that of logits; tensor parallel ranks divide it."""

    size: int

    def variables(self, name: str) -> Iterator[Variable]:
        """Yields the bias."""
        yield Variable(name, (self.size,), 0, decays=False, initial=0.0)


Leaf = DenseSpec | NormSpec | TableSpec | BiasSpec
Named = tuple[str, Leaf]


@dataclass(frozen=True)
class AttentionSpec:
    """Multi-head self-attention: four projections and a core."""

    query: DenseSpec
    key: DenseSpec
    value: DenseSpec
    output: DenseSpec
    heads: int
    positions: str = "learned"  # how it knows positions by itself: "rotary" or "alibi"; "learned": it does not
    theta: float = 10_000.0  # base of the wavelengths of rotary positions
    scaling: RopeScaling | None = None  # the scaling of rotary positions, if any
    window: int | None = None  # largest distance to a token that it attends to, forward and backward; None: to all
    head_norm: NormSpec | None = None  # for each head's queries, and another one for its keys, before the rotation

    def keys(self, tokens: int) -> int:
        """Returns the most tokens that one of a sequence of `tokens` attends to; a causal mask saves nothing."""
        return tokens if self.window is None else min(tokens, 2 * self.window + 1)

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.query.outputs // self.heads

    @property
    def key_value_heads(self) -> int:
        """Number of the heads of keys and values; each is for as many heads of queries."""
        return self.key.outputs // self.head_size

    def parts(self) -> Iterator[Named]:
        """Yields the projections, and the norms within, with their names."""
        norms = ("query_norm", "key_norm") if self.head_norm else ()
        yield from (("query", self.query), ("key", self.key), ("value", self.value))
        yield from ((name, self.head_norm) for name in norms)
        yield "output", self.output


@dataclass(frozen=True)
class FeedForwardSpec:
    """GeLU(x W_up) W_down; gated: (GeLU(x W_gate) * (x W_up)) W_down, or with SiLU in the place of GeLU."""

    up: DenseSpec
    down: DenseSpec
    gate: DenseSpec | None = None
    activation: str = "gelu"  # with a gate "geglu" or "swiglu"

    @property
    def wide(self) -> tuple[DenseSpec, ...]:
        """The projections to the wide layer, in their order."""
        return (self.up,) if self.gate is None else (self.gate, self.up)

    def parts(self) -> Iterator[Named]:
        """Yields the projections with their names."""
        names = ("up",) if self.gate is None else ("gate", "up")
        yield from zip(names, self.wide, strict=True)
        yield "down", self.down


@dataclass(frozen=True)
class TransformerBlockSpec:
    """Self-attention and the feed-forward layer, each with a norm: before it, or after the residual add."""

    attention: AttentionSpec
    attention_norm: NormSpec | None  # a pre-norm block may have none
    feed_forward: FeedForwardSpec
    feed_forward_norm: NormSpec
    pre_norm: bool

    def parts(self) -> Iterator[Named]:
        """Yields all leaves with their names."""
        for name, part, norm in (
            ("attention", self.attention, self.attention_norm),
            ("feed_forward", self.feed_forward, self.feed_forward_norm),
        ):
            for leaf_name, leaf in part.parts():
                yield f"{name}/{leaf_name}", leaf
            if norm:
                yield f"{name}/norm", norm

    def variables(self, name: str) -> Iterator[Variable]:
        """Yields the variables of one block."""
        for leaf_name, leaf in self.parts():
            for variable in leaf.variables(f"{name}/{leaf_name}"):
                yield variable._replace(is_hidden_matrix=len(variable.shape) == 2)


class HeadSpec(NamedTuple):
    """An output head."""

    name: str  # the first part of its variables' names
    leaves: tuple[Named, ...]  # its layers by their names within the head; "" if the head is one layer
    # What it reads: the "predictions" of a sample (masked tokens, or all), its "tokens", or the "sample" as one vector.
    rows: str

    def parts(self) -> Iterator[Named]:
        """Yields the layers with their global names."""
        for name, leaf in self.leaves:
            yield f"{self.name}/{name}" if name else self.name, leaf


class WeightCounts(NamedTuple):
    """Numbers of weights."""

    divided: int  # weights that tensor parallel ranks divide among themselves
    whole: int  # weights of which every tensor parallel rank has a copy

    @property
    def total(self) -> int:
        """The weights of the model."""
        return self.divided + self.whole

    def of_rank(self, tp: int) -> float:
        """Returns the weights that one of `tp` tensor parallel ranks holds."""
        return self.divided / tp + self.whole


def weight_counts(variables: Iterator[Variable]) -> WeightCounts:
    """Counts the weights of variables."""
    all_variables = list(variables)
    divided = sum(each.size for each in all_variables if each.axis is not None)
    return WeightCounts(divided, sum(each.size for each in all_variables) - divided)
