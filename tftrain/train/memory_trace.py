"""Draws the memory of the fullest rank over one step, measured and planned (`--trace_memory`).

A thread samples what the allocator has handed out, to which the picture adds what was held before the model was built.
The planned curve has the length of the measured step.
"""

import dataclasses
import itertools
import logging
import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from tftrain.host.units import GB
from tftrain.observe import memory, planned
from tftrain.observe.plot import HELD_OUT, TRAIN, axes_of
from tftrain.parallel import collectives
from tftrain.plan.timeline import Moment
from tftrain.state.run_state import Run
from tftrain.train.observers import Decision, Observer, TakenStep

logger = logging.getLogger(__name__)

STEP = 3  # The first step of a start compiles, and the second one may still allocate memory
SECONDS = 0.002  # between samples
POINTS = 512  # The measured curve has as many.
PHASES = {"forward": "#dde8f5", "backward": "#f6e3dc", "update": "#e3eed6"}


class Sampler:
    """Samples what this process holds until it is stopped."""

    def __init__(self):
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(SECONDS):
            self._samples.append((time.perf_counter(), memory.allocated()))

    def stop(self) -> tuple[float, np.ndarray]:
        """Returns the seconds from the first sample to the last, and POINTS values in bytes evenly between them."""
        self._stop.set()
        self._thread.join()
        times, held = np.array(self._samples or [(0.0, memory.allocated())]).T
        return float(times[-1] - times[0]), np.interp(np.linspace(times[0], times[-1], POINTS), times, held)


@dataclasses.dataclass
class MemoryTrace(Observer):
    """Samples one step and draws it after; every rank has one."""

    run: Run
    step: int  # the number of the step that is sampled
    outside: int  # bytes that this process held before the model was built, beside those of the allocator
    sampler: Sampler | None = None
    measured: tuple[float, np.ndarray] | None = None

    def after_step(self, step: TakenStep, decision: Decision) -> None:
        """Ends the samples of the step."""
        if self.sampler:
            int(self.run.progress.step)  # This read waits until the device has done the step.
            self.measured, self.sampler = self.sampler.stop(), None

    def between_steps(self, step: TakenStep, decision: Decision) -> None:
        """Starts the samples of the next step, or draws those of the last one."""
        if self.measured:
            length, held = self.measured
            self.measured = None
            self._write(length, self.outside + held)
        elif step.number == self.step - 1 and not decision.is_last:
            self.sampler = Sampler()

    def _write(self, length: float, held: np.ndarray) -> None:
        mesh, config = self.run.mesh, self.run.config
        every = collectives.all_gather_rows(mesh.world, tf.constant(held[None], tf.float64), "memory_trace").numpy()
        rank = int(every.max(axis=1).argmax())
        if not mesh.is_chief:
            return
        samples = config.batch.global_batch_size
        moments, peak = planned.timeline_of(self.run, samples)
        path = Path(config.run.folder) / "memory.png"
        title = f"Memory of rank {rank}, the fullest of {mesh.size}, in step {self.step}"
        try:
            draw(title, length, every[rank], moments, peak, path)
        except OSError as error:
            logger.warning(f"can't write {path}: {error.strerror or error}")
        else:
            measured, expected = every[rank].max() / GB, peak / GB
            logger.info(f"memory over step {self.step}: {measured:.2f} GB at most, planned {expected:.2f}; see {path}")


def draw(title: str, length: float, held: np.ndarray, moments: list[Moment], peak: float, path: Path) -> None:
    """Draws the memory of a step of `length` seconds.

    Args:
        held: measured bytes, evenly over the step.
        moments: the plan, whose times are scaled to the step; none under a pipeline.
        peak: planned bytes, with what the plan does not place in time.
    """
    axes = axes_of(title, "seconds of the step")
    axes.grid(False)  # The phases are its background.
    label = f"measured, {held.max() / GB:.2f} GB at most"
    axes.plot(np.linspace(0, length, len(held)), held / GB, color=TRAIN, linewidth=2, label=label)
    if moments:
        scale = length / (moments[-1].seconds or 1.0)
        times, sizes = [scale * each.seconds for each in moments], [each.held / GB for each in moments]
        axes.plot(times, sizes, color=HELD_OUT, linewidth=1.6, label=f"planned, {max(sizes):.2f} GB at most")
        for (begin, end), moment in zip(itertools.pairwise(times), moments[1:], strict=True):
            axes.axvspan(begin, end, color=PHASES[moment.phase], linewidth=0, zorder=0)
        for phase in PHASES:
            axes.fill_between([], [], color=PHASES[phase], label=phase)
    axes.axhline(peak / GB, color=HELD_OUT, linestyle="--", linewidth=1.2, label=f"planned peak, {peak / GB:.2f} GB")
    axes.set_ylabel("GB")
    axes.set_xlim(0, length)
    axes.set_ylim(bottom=0)
    axes.legend(facecolor="white", framealpha=1, edgecolor="none", ncols=2, loc="lower center")
    axes.figure.savefig(path, dpi=160, format="png")
