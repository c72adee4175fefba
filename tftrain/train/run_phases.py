"""The phases of a run while it trains (`--phases`): data, batches and held-out split of the one that runs."""

import logging
from collections.abc import Iterator

from tftrain.data import pipeline
from tftrain.observe.description import phase_words
from tftrain.state.run_state import Run
from tftrain.state.spikes import SpikeStatistics
from tftrain.tasks import Batch
from tftrain.train import held_out

logger = logging.getLogger(__name__)


class RunPhases:
    """The phase that runs, and the data of all, which is opened before the first step.

    Attributes:
        number: of the phase that runs, from 0.
        source, held_out: its training split, and its held-out split, None if it has none.
    """

    def __init__(self, run: Run):
        self.number, self._run, configs = -1, run, [phase.config for phase in run.timeline.phases]
        self._sources = [run.task.open_source(config.data, "train", config.run.seed) for config in configs]
        for mixture in (source.mixture for source in self._sources if source.mixture):
            mixture.number(run.task.source_names)
        self._held_out = [held_out.of_run(run, config) for config in configs]

    def begin(self) -> bool:
        """Gives the run the phase in which its next update is; returns whether it is another one than before.

        The losses of the phase before say nothing about those that follow.
        """
        before, consumed = self.number, int(self._run.progress.consumed_samples)
        self.number, self._updates = self._run.timeline.at(consumed)
        if consumed == self._run.timeline.begins[self.number]:
            self._run.spikes.statistics = SpikeStatistics()
        self.source, self.held_out = self._sources[self.number], self._held_out[self.number]
        self._run.begin_phase(self._run.timeline.phases[self.number].config)
        return self.number != before

    def batches(self) -> Iterator[Batch]:
        """Returns this rank's part of the global batches until the phase or the run ends."""
        config, progress = self._run.config, self._run.progress
        steps = min(self._updates, config.run.max_steps - int(progress.step))
        consumed, share = int(progress.consumed_samples), self._run.mesh.data.share
        seed, ramp = config.run.seed, config.batch.ramp
        return pipeline.ramped_batches(self.source, config.data, seed, consumed, ramp, share, steps, self._run.left_out)

    def end(self) -> None:
        """Says what the samples of the phase were, if they are those of a mixture."""
        consumed, begin = int(self._run.progress.consumed_samples), self._run.timeline.begins[self.number]
        if self.source.mixture:
            logger.info(f"mixture: {self.source.mixture.words(consumed, begin, self._run.left_out)}")

    def words(self) -> str:
        """Returns a line on the phase that runs."""
        return phase_words(self._run, self.number)
