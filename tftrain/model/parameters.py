"""Where every variable of the model is made: a global name, a dtype, and a draw that depends on the name alone.

The initial value of a variable is keyed by the seed and its global name, drawn in float32 and then cast. So it is the
same in every dtype, in whatever order the layers are built, and whichever rank builds them. Names look like
`layer_00/attention/query/kernel`; checkpoints and optimizers know variables by them.
"""

import zlib
from collections.abc import Sequence

import tensorflow as tf


def truncated_normal(name: str, shape: Sequence[int], stddev: float, seed: int) -> tf.Tensor:
    """Draws the initial value that belongs to a name.

    Args:
        name: the variable's global name.
        shape: the variable's global shape.
        stddev: standard deviation of the normal, which is cut off at twice this value.
        seed: the run's seed.

    Returns:
        A float32 tensor of `shape`.
    """
    key = tf.constant([seed, zlib.crc32(name.encode())], tf.int64)
    return tf.random.stateless_truncated_normal(shape, key, stddev=stddev, dtype=tf.float32, alg="philox")


class Parameters:
    """Makes the variables below one name, and remembers those of the whole model in the order they were made.

    Attributes:
        dtype: name of the variables' dtype, which is also what the layers compute in.
        variables: global name -> variable, shared by all scopes of one model.
    """

    def __init__(self, dtype: str, seed: int, initializer_range: float):
        """Starts a model without variables.

        Args:
            dtype: "float32", "bfloat16", "float16" or "float64".
            seed: the run's seed.
            initializer_range: standard deviation of the truncated normal that kernels and tables are drawn from.
        """
        self.dtype = dtype
        self.variables: dict[str, tf.Variable] = {}
        self._seed = seed
        self._initializer_range = initializer_range
        self._prefix = ""

    def scope(self, name: str) -> "Parameters":
        """Returns the same collection with `name/` before every name that is made through it."""
        inner = object.__new__(Parameters)
        inner.__dict__.update(self.__dict__, _prefix=f"{self._prefix}{name}/")
        return inner

    def normal(self, name: str, shape: Sequence[int]) -> tf.Variable:
        """Makes a variable drawn from the truncated normal."""
        drawn = truncated_normal(self._prefix + name, shape, self._initializer_range, self._seed)
        return self._make(name, tf.cast(drawn, self.dtype))

    def zeros(self, name: str, shape: Sequence[int]) -> tf.Variable:
        """Makes a variable of zeros: a bias, or the shift of a norm."""
        return self._make(name, tf.zeros(shape, self.dtype))

    def ones(self, name: str, shape: Sequence[int]) -> tf.Variable:
        """Makes a variable of ones: the scale of a norm."""
        return self._make(name, tf.ones(shape, self.dtype))

    def _make(self, name: str, value: tf.Tensor) -> tf.Variable:
        full_name = self._prefix + name
        if full_name in self.variables:
            raise ValueError(f"two variables are named {full_name}; every variable of a model needs its own name")
        self.variables[full_name] = tf.Variable(value, name=full_name)
        return self.variables[full_name]
