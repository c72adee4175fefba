"""All that an optimizer and a checkpoint need to know of a model: one description a variable."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from tftrain.architecture.parts import Variable
from tftrain.architecture.shard import VariableShard
from tftrain.config import param_groups
from tftrain.config.param_groups import ParamGroup
from tftrain.model.parameters import Parameter


class ParameterSpec(NamedTuple):
    """A variable of a model."""

    name: str  # its global name, such as `layer_00/attention/query/kernel`
    variable: tf.Variable | None  # this rank's shard, of any floating dtype; None if another pipeline stage has it
    shard: VariableShard | None  # what the variable is of the whole
    is_summed: bool = False  # whether every tensor parallel rank holds it whole, and its gradient is a sum over them
    # Returns the fp32 value that a master weight starts from; None: the variable's value.
    initial: Callable[[], tf.Tensor] | None = None
    decays: bool = True  # whether it has weight decay and layer adaptation
    group: ParamGroup | None = None
    is_matrix: bool = False  # whether Muon orthogonalizes it


def specs(described: Iterable[Variable], made: Mapping[str, Parameter], groups: str | None) -> Iterator[ParameterSpec]:
    """Yields the specs of a whole model, of which this rank has `made` some; `groups` is --param_groups."""
    described = list(described)
    by_name = param_groups.of_names(groups, (each.name for each in described))
    for each in described:
        own = made.get(each.name, Parameter(None, None, False, None))
        yield ParameterSpec(each.name, *own, each.decays, by_name.get(each.name), each.is_hidden_matrix)
