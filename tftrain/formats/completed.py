"""Weights with initial values for heads that files lack."""

import zlib
from collections.abc import Collection

import numpy as np

from tftrain.formats.weights import Weights, needed, part_of


class CompletedWeights(Weights):
    """Weights and heads with initial values: kernels from a truncated normal, norms of ones, zeros for the rest."""

    def __init__(self, weights: Weights, heads: Collection[str], seed: int):
        """Draws nothing yet.

        Args:
            weights: what is there.
            heads: what there shall be.
            seed: of the initial values, which depend on it and on the variable's name alone.
        """
        self._weights, self._seed = weights, seed
        self.path, self.model, self.tokenizer, self.notes = weights.path, weights.model, weights.tokenizer, ()
        has = {part_of(name) for name in weights.shapes}
        every = {each.name: each.shape for each in needed(weights.model, {*heads, *has})}
        self.shapes = every
        self.added = [name for name in every if name not in weights.shapes]

    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32; see `Weights.read`."""
        if name in self._weights.shapes:
            return self._weights.read(name)
        shape, leaf = self.shapes[name], name.rpartition("/")[2]
        if leaf == "kernel":
            return truncated_normal(shape, self.model.initializer_range, self._seed, name)
        return np.full(shape, 1.0 if leaf == "gamma" else 0.0, np.float32)


def truncated_normal(shape: tuple[int, ...], stddev: float, seed: int, name: str) -> np.ndarray:
    """Returns draws from a normal distribution without those beyond twice its standard deviation, fp32."""
    generator = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
    values = generator.standard_normal(shape, np.float32)
    while (beyond := np.abs(values) > 2).any():
        values[beyond] = generator.standard_normal(int(beyond.sum()), np.float32)
    return values * np.float32(stddev)
