"""Makes every variable of a model: a global name, a dtype, and an initial value that depends on the name alone.

The seed and the global name are the key of the initial value, which is drawn in float32 and then cast. So the value
does not depend on the dtype (except for rounding), the order in which layers are built, or the rank. If tensor parallel
ranks divide a variable, each rank draws the whole and takes its slice. A value can be drawn again: master weights start
from the float32 values, and nothing keeps a copy of them until then. Names look like
`layer_00/attention/query/kernel`. Checkpoints and optimizers identify variables by their names.
"""

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tftrain.architecture import parts
from tftrain.architecture.shard import VariableShard, shard_of
from tftrain.model.gathered_weights import release
from tftrain.parallel.tensor import TensorRanks, own_copy

ONE_RANK = TensorRanks()
# Returns the values of a shard, fp32, that a model begins with; None: they are drawn.
InitialValues = Callable[[VariableShard], np.ndarray | None]


class Parameter(NamedTuple):
    """A variable of a model."""

    variable: tf.Variable  # this rank's shard
    shard: VariableShard  # what that is of the whole variable
    # Whether its gradient is a sum over ranks that each hold it whole and use it for their own tokens or heads.
    is_summed: bool
    # Returns the initial value, fp32, before it was rounded; None: the variable's, which every dtype represents.
    initial: Callable[[], tf.Tensor] | None


def truncated_normal(name: str, shape: Sequence[int], stddev: float, seed: int) -> tf.Tensor:
    """Draws the initial value of a variable, float32, by its global name and shape and the run's seed.

    `stddev` is that of the normal, which is truncated at twice this value.
    """
    key = tf.constant([seed, zlib.crc32(name.encode())], tf.int64)
    return tf.random.stateless_truncated_normal(shape, key, stddev=stddev, dtype=tf.float32, alg="philox")


@dataclass(frozen=True)
class Parameters:
    """Makes the variables of one scope, and lists the variables of the whole model in the order they were made."""

    dtype: str  # in which the layers also compute: "float32", "bfloat16", "float16" or "float64"
    seed: int  # the run's
    initializer_range: float  # standard deviation of the truncated normal for kernels and tables
    ranks: TensorRanks = ONE_RANK
    initial: InitialValues | None = None  # values to begin with; None: all are drawn
    released: bool = False  # whether variables are made without their values, see `tftrain.model.gathered_weights`
    scope: str = ""
    are_parts: bool = False  # whether each rank uses the variables for some tokens or heads alone
    made: dict[str, Parameter] = field(default_factory=dict)  # by global name; shared by all scopes of one model

    def inner(self, name: str) -> "Parameters":
        """Returns the same collection for new variables of the scope `name` in this one."""
        return replace(self, scope=self.global_name(name))

    def global_name(self, name: str) -> str:
        """Returns the global name of a variable or a scope within this one."""
        return f"{self.scope}/{name}" if self.scope else name

    def offset(self, name: str) -> int:
        """Returns where this rank's shard of a variable begins in the whole, along the axis that ranks divide."""
        return sum(self.made[self.global_name(name)].shard.offset)  # The other axes begin at 0.

    def make(self, described: parts.Variable) -> tf.Variable:
        """Makes this rank's shard of a variable, which has its global name.

        Without given values, it begins with its constant, or with draws from the truncated normal.
        """
        name, ranks = described.name, self.ranks.group
        if name in self.made:
            raise ValueError(f"two variables are named {name}; every variable of a model needs its own name")
        shard = shard_of(name, described.shape, described.axis, described.unit, ranks.rank, ranks.size)
        if described.initial is None:
            draw = functools.partial(self._draw, shard, described.scale * self.initializer_range)
        else:
            draw = functools.partial(tf.fill, shard.shape, described.initial)
        is_exact = described.initial is not None and not self.initial  # in every dtype
        initial = functools.partial(self._given, shard, draw) if self.initial else draw
        value = tf.zeros(shard.shape, self.dtype) if self.released else tf.cast(initial(), self.dtype)
        variable = tf.Variable(value, name=name)
        if self.released:
            release(variable)
        is_summed = self.are_parts and not shard.is_divided
        self.made[name] = Parameter(variable, shard, is_summed, None if is_exact and not self.released else initial)
        return variable

    def leaf(self, name: str, spec: parts.TableSpec | parts.BiasSpec) -> tf.Variable:
        """Makes a variable of this scope that is a part by itself."""
        return self.make(next(spec.variables(self.global_name(name))))

    def _draw(self, shard: VariableShard, stddev: float) -> tf.Tensor:
        drawn = truncated_normal(shard.name, shard.whole, stddev, self.seed)
        return own_copy(shard.take(drawn)) if shard.is_divided else drawn

    def _given(self, shard: VariableShard, draw: Callable[[], tf.Tensor]) -> tf.Tensor:
        values = self.initial(shard)
        return draw() if values is None else own_copy(tf.constant(values))
