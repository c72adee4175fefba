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

import tensorflow as tf

from tftrain.checkpoint.tensor_slice import TensorSlice, held_slice
from tftrain.formats.weights import Weights
from tftrain.model.gathered_weights import release
from tftrain.parallel.tensor import TensorRanks, own_copy

ONE_RANK = TensorRanks()


def truncated_normal(name: str, shape: Sequence[int], stddev: float, seed: int) -> tf.Tensor:
    """Draws the initial value of a variable, float32, by its global name and shape and the run's seed.

    `stddev` is that of the normal, which is truncated at twice this value.
    """
    key = tf.constant([seed, zlib.crc32(name.encode())], tf.int64)
    return tf.random.stateless_truncated_normal(shape, key, stddev=stddev, dtype=tf.float32, alg="philox")


class Parameters:
    """Makes the variables of one scope, and lists the variables of the whole model in the order they were made.

    Attributes:
        dtype: name of the dtype of the variables, in which the layers also compute.
        ranks: the tensor parallel ranks.
        released: whether the variables are made without their values, see `tftrain.model.gathered_weights`.
        variables: global name -> variable, shared by all scopes of one model.
        summed: global names of the variables that every rank holds whole and uses for its own tokens or heads only,
            so that their gradients are sums over the tensor parallel ranks; shared likewise.
        pieces: global name -> the piece of the whole tensor that the variable holds; shared likewise.
        draws: global name -> function that draws the variable's initial value, float32; of variables whose initial
            values every dtype represents, there is one only if all variables are released. Shared likewise.
    """

    def __init__(
        self,
        dtype: str,
        seed: int,
        initializer_range: float,
        ranks: TensorRanks = ONE_RANK,
        initial: Weights | None = None,
        released: bool = False,
    ):
        """Starts a model without variables.

        Args:
            dtype: "float32", "bfloat16", "float16" or "float64".
            seed: the run's seed.
            initializer_range: standard deviation of the truncated normal for kernels and tables.
            ranks: the tensor parallel ranks.
            initial: weights to begin with; a variable that they lack is drawn.
            released: see above.
        """
        self.dtype, self.ranks, self._initial, self.released = dtype, ranks, initial, released
        self.variables: dict[str, tf.Variable] = {}
        self.summed: set[str] = set()
        self.pieces: dict[str, TensorSlice] = {}
        self.draws: dict[str, Callable[[], tf.Tensor]] = {}
        self._seed = seed
        self._initializer_range = initializer_range
        self._prefix, self._in_parts = "", False

    def scope(self, name: str) -> "Parameters":
        """Returns the same collection with the prefix `name/` for new variables."""
        return self._with(_prefix=f"{self._prefix}{name}/")

    def in_dtype(self, dtype: str) -> "Parameters":
        """Returns the same collection with another dtype for new variables."""
        return self._with(dtype=dtype)

    def in_parts(self, are_parts: bool) -> "Parameters":
        """Returns the same collection for variables that each rank uses, or not, for some tokens or heads alone."""
        return self._with(_in_parts=are_parts)

    def _with(self, **changes) -> "Parameters":
        inner = object.__new__(Parameters)
        inner.__dict__.update(self.__dict__, **changes)
        return inner

    @property
    def place(self) -> str:
        """The global name of the scope, which is that of a layer."""
        return self._prefix.removesuffix("/")

    def normal(
        self,
        name: str,
        shape: Sequence[int],
        axis: int | None = None,
        unit: int = 1,
        scale: float = 1.0,
    ) -> tf.Variable:
        """Makes a variable with initial values from the truncated normal.

        Args:
            name: within this scope.
            shape: of the whole variable.
            axis: the axis that tensor parallel ranks divide; None: every rank has the whole.
            unit: number of neighbouring elements along the axis that stay on one rank.
            scale: factor of the standard deviation.

        Returns:
            This rank's part of the variable.
        """
        piece = self._piece(name, shape, axis, unit)
        return self._make(piece, functools.partial(self._draw, piece, scale * self._initializer_range))

    def zeros(self, name: str, shape: Sequence[int], axis: int | None = None, unit: int = 1) -> tf.Variable:
        """Makes a variable of zeros: a bias, or the shift of a norm; see `normal`."""
        piece = self._piece(name, shape, axis, unit)
        return self._make(piece, functools.partial(tf.zeros, piece.shape), is_exact=True)

    def ones(self, name: str, shape: Sequence[int]) -> tf.Variable:
        """Makes a variable of ones: the scale of a norm."""
        return self._make(self._piece(name, shape), functools.partial(tf.ones, shape), is_exact=True)

    def initial_value(self, name: str) -> tf.Tensor:
        """Returns the initial value of a variable, by its global name, float32, before it was rounded to the dtype."""
        # Zeros and ones are exact in every dtype.
        return self.draws[name]() if name in self.draws else tf.cast(self.variables[name], tf.float32)

    def offset(self, name: str) -> int:
        """Returns where this rank's part of a variable begins in the whole, along the axis that ranks divide."""
        return sum(self.pieces[self._prefix + name].offset)  # The other axes begin at 0.

    def _piece(self, name: str, shape: Sequence[int], axis: int | None = None, unit: int = 1) -> TensorSlice:
        """Returns this rank's piece of a tensor; a tensor that is whole on every rank is saved by the first."""
        return held_slice(self._prefix + name, shape, axis, unit, self.ranks.group.rank, self.ranks.group.size)

    def _draw(self, piece: TensorSlice, stddev: float) -> tf.Tensor:
        drawn = truncated_normal(piece.name, piece.whole, stddev, self._seed)
        return own_copy(piece.take_block(drawn)) if piece.is_divided else drawn

    def _given(self, piece: TensorSlice) -> tf.Tensor:
        return own_copy(tf.constant(piece.take_block(self._initial.read(piece.name))))

    def _make(self, piece: TensorSlice, draw: Callable[[], tf.Tensor], is_exact: bool = False) -> tf.Variable:
        """Makes a variable from a function that returns its initial value, float32; exact: in every dtype."""
        if piece.name in self.pieces:
            raise ValueError(f"two variables are named {piece.name}; every variable of a model needs its own name")
        if self._initial and piece.name in self._initial.shapes:
            draw, is_exact = functools.partial(self._given, piece), False
        self.pieces[piece.name] = piece
        if self._in_parts and not piece.is_divided:
            self.summed.add(piece.name)
        value = tf.zeros(piece.shape, self.dtype) if self.released else tf.cast(draw(), self.dtype)
        variable = tf.Variable(value, name=piece.name)
        if self.released:
            release(variable)
        if self.released or not is_exact:
            self.draws[piece.name] = draw
        self.variables[piece.name] = variable
        return variable
