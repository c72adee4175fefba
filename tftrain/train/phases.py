"""The phases of a run while it trains (`--phases`): step, batches and held-out split of the phase that runs."""

import gc
import logging
from collections.abc import Iterator, Sequence

from tftrain.data import pipeline
from tftrain.data.phase_data import PhaseData
from tftrain.state.run_state import Run, StepInfo
from tftrain.state.spikes import SpikeStatistics
from tftrain.tasks import Batch, sources
from tftrain.tasks.task import Contents
from tftrain.train import held_out, introduction, rank_checks
from tftrain.train.device_batches import DeviceBatch, DeviceBatches, device_of_batches
from tftrain.train.stage_clock import StageClock
from tftrain.train.step import Requests, TrainStep

logger = logging.getLogger(__name__)


class Phases:
    """The phase that runs, and the data of all phases, which is opened before the first step.

    Attributes:
        source, held_out: training split and held-out split of the phase that runs; None if it has no held-out split.
    """

    def __init__(self, run: Run, data: Sequence[PhaseData]):
        self._number, self._run, seed = -1, run, run.whole.run.seed
        self._sources = [sources.open_source(run.task, each, "train", seed) for each in data]
        for mixture in (source.mixture for source in self._sources if source.mixture):
            mixture.number(run.task.source_names)
        self._held_out = [held_out.of_run(run, each, number) for number, each in enumerate(data)]
        self._step: TrainStep | None = None  # made when the phase takes its first step
        self._batches: DeviceBatches | Iterator[tuple[Batch, None]] = iter(())
        self._on_device: DeviceBatch | None = None  # the batch that was taken last, if it is there

    def begin(self) -> bool:
        """Gives the run the phase in which its next update is; returns whether it is another one than before.

        The losses of the phase before say nothing about those that follow.
        """
        self.end()
        run, before, consumed = self._run, self._number, int(self._run.progress.consumed_samples)
        self._number, updates = run.timeline.at(consumed)
        if consumed == run.timeline.begins[self._number]:
            run.spikes.statistics = SpikeStatistics()
        self.source, self.held_out = self._sources[self._number], self._held_out[self._number]
        run.begin_phase(self._number)
        done, max_steps = int(run.progress.step), run.config.run.max_steps
        steps = min(updates, max_steps - done)
        self._last, self._batches = done + steps, self._share_of_batches(consumed, steps)
        if self._number != before and self._step:
            self._step = None
            gc.collect()  # The graphs of the phase before refer to themselves.
        return self._number != before

    def end(self) -> None:
        """Drops the batches that are read ahead; every rank must call it after the same step."""
        if isinstance(self._batches, DeviceBatches):
            self._batches.close()

    def _share_of_batches(self, consumed: int, steps: int) -> DeviceBatches | Iterator[tuple[Batch, None]]:
        run, config = self._run, self._run.config
        seed, ramp, share = config.run.seed, config.batch.ramp, run.mesh.data.share
        batches = pipeline.ramped_batches(self.source, config.data, seed, consumed, ramp, share, steps, run.left_out)
        if device := device_of_batches(run.jit):
            return DeviceBatches(batches, run.task, run.mesh.data, device)
        return ((batch, None) for batch in batches)

    def next_batch(self) -> Batch:
        """Returns this rank's share of the next global batch of the phase; `check` and `step` take no other one."""
        batch, self._on_device = next(self._batches)
        return batch

    def size(self, batch: Batch) -> tuple[int, int]:
        """Returns the samples of a global batch, given this rank's share, and the tokens of each with its padding."""
        return self._run.task.batch_size(batch) * self._run.mesh.data.size, batch["input_ids"].shape[1]

    def contents(self, batch: Batch) -> Contents:
        """Returns what a batch of this rank contains."""
        return self._run.task.contents(batch)

    def check(self, batch: Batch, requests: Requests) -> None:
        """Makes the step if the phase has none yet; compares its collectives on all ranks, see `before_first_step`."""
        if self._step is None:
            self._step = TrainStep(self._run)
            # Without the reasons, which may have numbers of this rank.
            ops = self._run.task.implementations().removeprefix("implementations: ").partition(" (")[0]
            rank_checks.before_first_step(self._step, self._on_device or batch, requests, self._run.mesh, ops)

    def step(self, batch: Batch, requests: Requests) -> StepInfo:
        """Does one update with this rank's share of a global batch; `check` was called with the first one."""
        return self._step(self._on_device or batch, requests)

    @property
    def clock(self) -> StageClock | None:
        """The times of this pipeline stage in the last step, with --trace_pipeline."""
        return self._step.clock

    def ends_with(self, step: int) -> bool:
        """Returns whether the phase, or the run, has no update after this one."""
        return step >= self._last

    def log_end(self) -> None:
        """Says what the samples of the phase were, if they are those of a mixture."""
        consumed, begin = int(self._run.progress.consumed_samples), self._run.timeline.begins[self._number]
        if self.source.mixture:
            logger.info(f"mixture: {self.source.mixture.describe(consumed, begin, self._run.left_out)}")

    def describe(self) -> str:
        """Returns a line on the phase that runs."""
        return introduction.describe_phase(self._run, self._number)
