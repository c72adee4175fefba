"""How a tensor of another library corresponds to variables of this project, in both directions without a loss.

A `Link` moves elements and computes nothing, so a tensor that goes there and back has the same bits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tftrain.architecture.parts import Variable

Arrays = Sequence[np.ndarray]
TORCH_LEAVES = {"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"}


class Link(NamedTuple):
    """One tensor of the other library."""

    theirs: str  # its name
    shape: tuple[int, ...]
    ours: tuple[str, ...]  # global names of the variables that it holds
    join: Callable[[Arrays], np.ndarray]  # maps the variables to the tensor
    split: Callable[[np.ndarray], Arrays]  # maps the tensor to the variables


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


def as_in_torch(theirs: str, variable: Variable) -> Link:
    """Returns the link of a tensor as torch has it: kernels are `transposed`."""
    return (transposed if variable.name.endswith("/kernel") else same)(theirs, variable)


def joined(theirs: str, variables: Sequence[Variable], by_rows: bool = True) -> Link:
    """Returns the link of variables of one shape that are concatenated along their outputs, the last axis.

    With `by_rows`, rows and columns of a matrix are exchanged, see `transposed`.
    """
    count, (*inner, outputs) = len(variables), variables[0].shape
    shape, names = (*inner, count * outputs), tuple(variable.name for variable in variables)
    turned = np.transpose if by_rows else np.asarray
    return Link(
        theirs,
        shape[::-1] if by_rows else shape,
        names,
        lambda values: turned(np.concatenate(values, -1)),
        lambda tensor: np.split(turned(tensor), count, -1),
    )


def by_heads(theirs: str, variables: Sequence[Variable], heads: int) -> Link:
    """Returns the link of variables that alternate head by head along the tensor's first axis, as in Megatron-LM.

    Args:
        theirs: name of the tensor, [heads * len(variables) * head size, inputs], or without the last axis for biases.
        variables: queries, keys and values, [inputs, outputs], or [outputs] for biases.
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
    """The names of a library for the variables of a model."""

    # Its name for each of our scopes; those of a block are without `layer_NN/` and have `{layer}` in theirs. Dense
    # layers with one name are one tensor there.
    scopes: Mapping[str, str]
    leaves: Mapping[str, str] = TORCH_LEAVES  # its name for each of our last parts of a name
    # What makes the link of a tensor with one variable, or with several: by default as in torch.
    alone: Callable[[str, Variable], Link] = as_in_torch
    together: Callable[[str, Sequence[Variable]], Link] = joined
    first_layer: int = 0  # its number of the first block

    def links(self, variables: Iterable[Variable]) -> list[Link]:
        """Returns the links of all tensors that hold some variables; raises a KeyError if the library lacks one."""
        by_tensor: dict[str, list[Variable]] = {}
        for variable in variables:
            by_tensor.setdefault(self._theirs(variable), []).append(variable)
        return [
            self.together(theirs, held) if held[1:] else self.alone(theirs, held[0])
            for theirs, held in by_tensor.items()
        ]

    def _theirs(self, variable: Variable) -> str:
        if variable.name in self.scopes:
            return self.scopes[variable.name]
        scope, _, leaf = variable.name.rpartition("/")
        layer, _, inner = scope.partition("/")
        if not layer.startswith("layer_"):
            return self.scopes[scope] + self.leaves[leaf]
        return self.scopes[inner].format(layer=self.first_layer + int(layer.removeprefix("layer_"))) + self.leaves[leaf]
