"""The best checkpoint of a run by a score of its evaluations, and the end of a run that does not get better."""

import logging
import math
from pathlib import Path

from tftrain.checkpoint import scores
from tftrain.checkpoint.scores import Score, Scores
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh

logger = logging.getLogger(__name__)


class Best:
    """The scores of a run's evaluations by one metric, of which higher is better; the same on all ranks."""

    def __init__(self, output_dir: str, metric: str, patience: int, mesh: Mesh, done: int):
        """Reads the scores of earlier evaluations, and forgets those after the updates `done`; every rank must call it.

        The patience is the number of evaluations in a row without a better score that ends a run; 0: none does.
        """
        self.metric, self._patience, self._mesh, self._output_dir = metric, patience, mesh, output_dir
        before: list[tuple[int, float | None]] = []
        if mesh.is_chief and (stored := scores.read(output_dir)):
            if stored.metric == metric:
                before = [(each.step, each.value) for each in stored.evaluations]
            elif best := stored.best:
                what = f"the best score so far, after step {best.step}, is of {stored.metric}"
                logger.warning(f"{what}: by {metric} it no longer counts, nor does it keep its checkpoint")
        before = collectives.gather_values(mesh.world, before, "best.before")[0]
        self._scores = Scores(metric, [Score(*each) for each in before])
        self.has_lost_best = self.go_back(done)

    def observe(self, step: int, value: float) -> bool:
        """Records the score of an evaluation; returns whether it is the best so far. Every rank must call it."""
        self._scores.evaluations.append(Score(step, value if math.isfinite(value) else None))
        self._write()
        return self.step == step

    def go_back(self, step: int) -> bool:
        """Forgets the scores of evaluations after a step; returns whether the best one was among them."""
        before, count = self.step, len(self._scores.evaluations)
        self._scores.evaluations = [each for each in self._scores.evaluations if each.step <= step]
        if len(self._scores.evaluations) < count:
            self._write()
        return self.step != before

    def _write(self) -> None:
        if self._mesh.is_chief:
            try:
                scores.write(self._output_dir, self._scores)
            except OSError as error:
                path = Path(self._output_dir) / scores.NAME
                logger.warning(f"{path}: can't be written: {error}; a resumed run does not know the best score")

    @property
    def step(self) -> int | None:
        """Updates before the best evaluation; None if there is none."""
        return self._scores.best and self._scores.best.step

    @property
    def is_exhausted(self) -> bool:
        """Whether the last evaluations, as many as the patience, were not better than one before them."""
        if not self._patience or self.step is None:
            return False
        return sum(each.step > self.step for each in self._scores.evaluations) >= self._patience

    def describe(self) -> str:
        """Returns the best score for the log."""
        if (best := self._scores.best) is None:
            return f"{self.metric} was never finite"
        return f"best {self.metric} {best.value:.4f} after step {best.step}"
