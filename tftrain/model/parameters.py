"""Makes every variable of a model: a global name, a dtype, and an initial value that depends on the name alone.

The seed and the global name are the key of the initial value, which is drawn in float32 and then cast. So it is the
same in every dtype, in every order in which layers are built, and on every rank: where tensor parallel ranks divide a
variable, each rank draws the whole and takes its slice. Names look like `layer_00/attention/query/kernel`. Checkpoints
and optimizers identify variables by them.
"""

import zlib
from collections.abc import Sequence

import tensorflow as tf

from tftrain.parallel.mesh import Group
from tftrain.parallel.tensor import Slice, own_copy

ONE_RANK = Group()


def truncated_normal(name: str, shape: Sequence[int], stddev: float, seed: int) -> tf.Tensor:
    """Draws the initial value of a variable.

    Args:
        name: the variable's global name.
        shape: the variable's global shape.
        stddev: standard deviation of the normal, which is truncated at twice this value.
        seed: the run's seed.

    Returns:
        A float32 tensor of `shape`.
    """
    key = tf.constant([seed, zlib.crc32(name.encode())], tf.int64)
    return tf.random.stateless_truncated_normal(shape, key, stddev=stddev, dtype=tf.float32, alg="philox")


class Parameters:
    """Makes the variables of one scope, and lists the variables of the whole model in the order they were made.

    Attributes:
        dtype: name of the dtype of the variables, in which the layers also compute.
        tensor: the tensor parallel ranks.
        variables: global name -> variable, shared by all scopes of one model.
        slices: global name -> slice of the whole, for the divided variables; shared likewise.
    """

    def __init__(self, dtype: str, seed: int, initializer_range: float, tensor: Group = ONE_RANK):
        """Starts a model without variables.

        Args:
            dtype: "float32", "bfloat16", "float16" or "float64".
            seed: the run's seed.
            initializer_range: standard deviation of the truncated normal for kernels and tables.
            tensor: the tensor parallel ranks.
        """
        self.dtype, self.tensor = dtype, tensor
        self.variables: dict[str, tf.Variable] = {}
        self.slices: dict[str, Slice] = {}
        self._seed = seed
        self._initializer_range = initializer_range
        self._prefix = ""

    def scope(self, name: str) -> "Parameters":
        """Returns the same collection with the prefix `name/` for new variables."""
        return self._with(_prefix=f"{self._prefix}{name}/")

    def in_dtype(self, dtype: str) -> "Parameters":
        """Returns the same collection with another dtype for new variables."""
        return self._with(dtype=dtype)

    def _with(self, **changes) -> "Parameters":
        inner = object.__new__(Parameters)
        inner.__dict__.update(self.__dict__, **changes)
        return inner

    @property
    def place(self) -> str:
        """The global name of the scope, which is that of a layer."""
        return self._prefix.removesuffix("/")

    def normal(self, name: str, shape: Sequence[int], axis: int | None = None, unit: int = 1) -> tf.Variable:
        """Makes a variable with initial values from the truncated normal.

        Args:
            name: within this scope.
            shape: of the whole variable.
            axis: the axis that tensor parallel ranks divide; None: every rank has the whole.
            unit: number of neighbouring elements along the axis that stay on one rank.

        Returns:
            This rank's part of the variable.
        """
        part = self._divide(name, shape, axis, unit)
        drawn = truncated_normal(self._prefix + name, shape, self._initializer_range, self._seed)
        return self._make(name, tf.cast(own_copy(part.take(drawn, self.tensor.rank)) if part else drawn, self.dtype))

    def zeros(self, name: str, shape: Sequence[int], axis: int | None = None, unit: int = 1) -> tf.Variable:
        """Makes a variable of zeros: a bias, or the shift of a norm; see `normal`."""
        part = self._divide(name, shape, axis, unit)
        return self._make(name, tf.zeros(part.shape(self.tensor.rank) if part else shape, self.dtype))

    def ones(self, name: str, shape: Sequence[int]) -> tf.Variable:
        """Makes a variable of ones: the scale of a norm."""
        return self._make(name, tf.ones(shape, self.dtype))

    def offset(self, name: str) -> int:
        """Returns the index in the whole of the first element of this rank's part, along the divided axis."""
        part = self.slices.get(self._prefix + name)
        return part.bounds[self.tensor.rank] if part else 0

    def _divide(self, name, shape, axis, unit) -> Slice | None:
        """Returns and records the slices of a divided variable; None where this rank has the whole."""
        if axis is None or self.tensor.size == 1:
            return None
        part = self.slices[self._prefix + name] = Slice.even(shape, axis, self.tensor.size, unit)
        return part

    def _make(self, name: str, value: tf.Tensor) -> tf.Variable:
        full_name = self._prefix + name
        if full_name in self.variables:
            raise ValueError(f"two variables are named {full_name}; every variable of a model needs its own name")
        self.variables[full_name] = tf.Variable(value, name=full_name)
        return self.variables[full_name]
