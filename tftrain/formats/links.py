"""How a tensor of another library corresponds to variables of this project, in both directions without a loss.

A `Link` moves elements and computes nothing, so a tensor that goes there and back has the same bits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tftrain.architecture.parts import Variable

Arrays = Sequence[np.ndarray]


class Link(NamedTuple):
    """One tensor of the other library.

    Attributes:
        theirs: its name.
        shape: its shape.
        ours: global names of the variables that it holds.
        join: maps the variables to the tensor.
        split: maps the tensor to the variables.
    """

    theirs: str
    shape: tuple[int, ...]
    ours: tuple[str, ...]
    join: Callable[[Arrays], np.ndarray]
    split: Callable[[np.ndarray], Arrays]


def same(theirs: str, variable: Variable) -> Link:
    """Returns the link of a tensor with the variable's shape."""
    return reshaped(theirs, variable, variable.shape)


def reshaped(theirs: str, variable: Variable, shape: Sequence[int]) -> Link:
    """Returns the link of a tensor with the variable's elements in the same order."""
    return Link(
        theirs,
        tuple(shape),
        (variable.name,),
        lambda values: values[0].reshape(shape),
        lambda tensor: [tensor.reshape(variable.shape)],
    )


def transposed(theirs: str, variable: Variable) -> Link:
    """Returns the link of a matrix with rows and columns exchanged: torch's kernels are [outputs, inputs]."""
    return Link(theirs, variable.shape[::-1], (variable.name,), lambda values: values[0].T, lambda tensor: [tensor.T])


def joined(theirs: str, variables: Sequence[Variable], by_rows: bool) -> Link:
    """Returns the link of variables of one shape that are concatenated along their outputs, the last axis.

    Args:
        theirs: name of the tensor.
        variables: such as the kernels of queries, keys and values.
        by_rows: whether the tensor has rows and columns exchanged, see `transposed`.
    """
    count, (*inner, outputs) = len(variables), variables[0].shape
    shape, names = (*inner, count * outputs), tuple(variable.name for variable in variables)
    if by_rows:
        return Link(
            theirs, shape[::-1], names, lambda values: np.concatenate(values, -1).T, lambda x: np.split(x.T, count, -1)
        )
    return Link(theirs, shape, names, lambda values: np.concatenate(values, -1), lambda x: np.split(x, count, -1))


def by_heads(theirs: str, variables: Sequence[Variable], heads: int) -> Link:
    """Returns the link of variables that alternate head by head along the tensor's first axis, as in Megatron-LM.

    Args:
        theirs: name of the tensor, [heads * len(variables) * head size, inputs], or without the last axis for biases.
        variables: queries, keys and values, [inputs, outputs] or [outputs].
        heads: number of heads.
    """
    outputs, inner = variables[0].shape[-1], variables[0].shape[:-1]
    size = outputs // heads

    def join(values: Arrays) -> np.ndarray:
        per_head = [value.T.reshape(heads, size, *inner) for value in values]
        return np.stack(per_head, axis=1).reshape(len(variables) * outputs, *inner)

    def split(tensor: np.ndarray) -> Arrays:
        per_head = tensor.reshape(heads, len(variables), size, *inner)
        return [per_head[:, index].reshape(outputs, *inner).T for index in range(len(variables))]

    names = tuple(variable.name for variable in variables)
    return Link(theirs, (len(variables) * outputs, *inner), names, join, split)


class Names(NamedTuple):
    """The names of a library for the variables of a model.

    Attributes:
        scopes: its name for each of our scopes; those of a block are without `layer_NN/` and have `{layer}` in theirs.
            Dense layers with one name are one tensor there.
        leaves: its name for each of our last parts of a name: kernel, bias, gamma and beta.
        kernel: makes the link of a kernel.
    """

    scopes: Mapping[str, str]
    leaves: Mapping[str, str]
    kernel: Callable[[str, Variable], Link]

    def link(self, variable: Variable) -> Link:
        """Returns the link of a variable that a tensor holds alone.

        Raises:
            KeyError: the library has no such variable.
        """
        return (self.kernel if variable.name.endswith("/kernel") else same)(self._theirs(variable), variable)

    def links(self, variables: Iterable[Variable]) -> list[Link]:
        """Returns the links of all tensors that hold some variables; see `link`."""
        by_tensor: dict[str, list[Variable]] = {}
        for variable in variables:
            by_tensor.setdefault(self._theirs(variable), []).append(variable)
        return [
            self.link(first)
            if not more
            else joined(theirs, [first, *more], self.kernel is transposed and len(first.shape) > 1)
            for theirs, (first, *more) in by_tensor.items()
        ]

    def _theirs(self, variable: Variable) -> str:
        if variable.name in self.scopes:
            return self.scopes[variable.name]
        layer, inner = split_layer(variable.name)
        scope, _, leaf = inner.rpartition("/")
        return self.scopes[scope].format(layer=layer) + self.leaves[leaf]


def split_layer(name: str) -> tuple[int | None, str]:
    """Returns the layer of a variable, None outside of the blocks, and its name within the layer."""
    first, _, rest = name.partition("/")
    if first.startswith("layer_"):
        return int(first.removeprefix("layer_")), rest
    return None, name
