"""The interface of what judges predictions for a whole split, where sums over micro-batches can't."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


class Scorer(abc.ABC):
    """Judges what a task predicts for the examples of a split; `predictions` needs no labels.

    Attributes:
        metrics: names of the scores; the first one chooses the best checkpoint by default. Higher is better.
    """

    metrics: tuple[str, ...]

    @abc.abstractmethod
    def scores(self, outputs: np.ndarray) -> dict[str, float]:
        """Returns the scores by name; NaN where one is not defined.

        Args:
            outputs: of the first examples of the split, in order: fp32 [n, ...], see `tasks.Task.compute`.
        """

    @abc.abstractmethod
    def predictions(self, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yields a JSON object for each example."""

    def confusion(self, outputs: np.ndarray) -> tuple[Sequence[str], np.ndarray] | None:
        """Returns the classes and how many examples of each (row) were taken for each (column), int [n, n], if any."""
        return None
