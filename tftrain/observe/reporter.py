"""Reports a run: a row of figures every `log_every` steps, pictures and a page at the end."""

import bisect
import contextlib
import dataclasses
import json
import logging
import math
import platform
import time
from pathlib import Path

import tensorflow as tf

from tftrain.config.fields import flag_values, without_secrets
from tftrain.files import durable
from tftrain.finetune.scorers import Scorer
from tftrain.host import devices
from tftrain.host.environment import versions
from tftrain.host.exit_codes import RunError
from tftrain.observe import goodput, memory, planned, predictions, run_page
from tftrain.observe.health import NOTHING_PREDICTED
from tftrain.observe.ledger import Ledger
from tftrain.observe.metrics import MetricsWriter
from tftrain.observe.plot import loss_curve, score_curve
from tftrain.observe.rows import FIELDS, PlannedRow, RollbackRow, SpikeRow, TrainRow, bytes_of, of_evaluation
from tftrain.observe.trackers import Trackers
from tftrain.parallel import collectives
from tftrain.plan import cluster
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.run_state import Evaluation, Run, StepInfo
from tftrain.tasks.task import Contents

logger = logging.getLogger(__name__)


class Clock:
    """Counts steps, their samples and their seconds, without the time between steps."""

    def __init__(self):
        """Starts now."""
        self._compiled: set[tuple[int, int]] = set()
        self.batch_size = 0  # samples of the last step, counted or not; 0 before the first
        # What the counted samples of this rank contain; before a step is counted, those of the last one.
        self.contents = Contents(0, 0, 0, 0.0)
        self.start()

    def start(self) -> None:
        """Resets all counts and starts now."""
        self.steps, self.samples = 0, 0
        # Seconds of the first step, of all or of a phase, with compilation; NaN if it is not since the start, or alone.
        self.first_seconds = math.nan
        self._start, self._paused = time.perf_counter(), 0.0

    def compiles(self, samples: int, length: int) -> bool:
        """Whether the next step with so many samples of this length is the first."""
        return (samples, length) not in self._compiled

    def begin_phase(self) -> None:
        """Lets the next step of each size count as the first."""
        self._compiled.clear()

    @contextlib.contextmanager
    def step(self, samples: int, length: int, contents: Contents):
        """Counts the step inside a `with` statement, unless it is the first of its size: that one compiles.

        `samples` counts all ranks, `length` is the padded length of each sample, `contents` counts this rank alone.
        """
        self.batch_size = samples
        if not self.steps:
            self.contents = contents
        if not self.compiles(samples, length):
            yield
            if self.steps:
                self.contents = Contents(*map(sum, zip(self.contents, contents, strict=True)))
            self.steps, self.samples = self.steps + 1, self.samples + samples
            return
        begin, is_alone = time.perf_counter(), not (self._compiled or self.steps)
        with self.pause():
            yield
        if not self._compiled:
            self.start()  # The first batch took its time as well.
        self.first_seconds = time.perf_counter() - begin if is_alone else math.nan
        self._compiled.add((samples, length))

    @contextlib.contextmanager
    def pause(self):
        """Leaves out the time inside a `with` statement, where the counts may start anew."""
        begin = time.perf_counter()
        yield
        self._paused += time.perf_counter() - max(begin, self._start)

    def seconds_per_step(self) -> float:
        """Returns the mean since the start; NaN before the first step."""
        elapsed = time.perf_counter() - self._start - self._paused
        return elapsed / self.steps if self.steps else math.nan


class Reporter:
    """Measures the steps of a run on every rank, with a `clock`, and writes rows on the chief."""

    def __init__(self, run: Run, checkpoints: Checkpoints, done: int, baseline: int, ledger: Ledger):
        """Opens the files and removes the rows of steps after the `done` updates; rows count failed `checkpoints`.

        `baseline` is the number of bytes that this process held before the model was built; `ledger` has its seconds by
        kind.
        """
        if clash := {mean.name for mean in run.task.means} & FIELDS:
            fault = f"--task={run.config.model.task}: a mean is named {min(clash)}, as another field of metrics.jsonl"
            raise RunError(f"{fault}; use another name")
        self.clock = Clock()
        self._run, self._checkpoints, self._baseline = run, checkpoints, baseline
        self._max_steps = run.config.run.max_steps
        self.begin_phase(done)
        self._scores: tuple[str, ...] = ()
        self._drawn: list[Path] = []
        self._writer = self._trackers = self._goodput = None
        self._ledger = ledger
        if run.mesh.is_chief:
            output_dir, form, reports = run.config.run.folder, run.config.log.log_format, run.config.log.reports
            if names := [name for name in reports if name != "tensorboard"]:
                self._trackers = Trackers(names, Path(output_dir), flag_values(without_secrets(run.whole)), done > 0)
            send, events = self._trackers and self._trackers.log, "tensorboard" in reports
            self._writer = MetricsWriter(output_dir, self._max_steps, run.task.means, form, send, events)
            self._writer.truncate_after(done, len(run.left_out.windows))
            _write_config(run)
            self._goodput = goodput.Goodput(output_dir, ledger, done)

    def begin_phase(self, done: int) -> None:
        """Lets the first step of a phase, after the `done` updates, count as one that compiles; plans the second."""
        self.clock.begin_phase()
        # The memory of the first step includes that of compilation.
        self._memory_step = min(done + 2, self._max_steps)

    def step(self, number: int, info: StepInfo, is_due: bool) -> None:
        """Records a step and writes a row if one is due; every rank must call it."""
        if self._writer:
            self._writer.advance(number)
            self._goodput.note(number)
        if number == self._memory_step:
            self._write_plan(number)
        if is_due:
            row = train_row(self._run, info, self.clock, self._checkpoints.saves.failed)
            if self._writer:
                line, done = self._run.timeline, row.consumed_samples
                left = line.tokens(line.samples_after(self._max_steps - number, done)) - line.tokens(done)
                steps = left / (row.global_batch_size * row.max_seq_length)  # Later ones may be larger than this one.
                self._writer.train(row, steps * self.clock.seconds_per_step())
            self.clock.start()

    def _write_plan(self, number: int) -> None:
        """Writes measured and planned memory and time."""
        run = self._run
        int(run.progress.step)  # This read waits until the device has done the step.
        seconds = self.clock.seconds_per_step()
        with self.clock.pause():
            plan = planned.plan_step(run, self.clock.batch_size)
            row = memory.report(run, number, self._baseline, self._checkpoints.copy_bytes, plan.memory)
            if self._writer:
                planned_row = PlannedRow(number, bytes_of("planned", plan.memory), plan.seconds, seconds)
                table = memory.table(row, planned_row, run.mesh.size)
                self._writer.memory(row, planned_row, f"{table}\n{planned.time_lines(planned_row, plan.unknown)}")

    def evaluation(self, number: int, result: Evaluation) -> None:
        """Writes the result of an evaluation."""
        if result.means["loss"] is None and not result.scores:
            logger.info(NOTHING_PREDICTED)
        row = of_evaluation(number, self._run.task.means, result)
        self._scores = tuple(name for name in row.scores if "/" not in name)  # No losses of a mixture's sources.
        if self._writer:
            self._writer.evaluation(row)

    def predictions(self, scorer: Scorer, result: Evaluation) -> None:
        """Writes what the model predicts for the held-out examples."""
        if self._writer:
            predictions.write(self._run.config.run.folder, scorer, result.outputs)

    def forget_predictions(self) -> None:
        """Removes what the model predicted after a step that the run has gone back from."""
        if self._writer:
            predictions.remove(self._run.config.run.folder)

    def spike(self, row: SpikeRow) -> None:
        """Writes a loss spike."""
        if self._writer:
            self._writer.spike(row)

    def rollback(self, step: int, row: RollbackRow) -> None:
        """Writes that the run goes back after `step` updates, and removes the rows that it leaves."""
        self.clock.start()
        if self._writer:
            self._goodput.go_back(step, row.step)
            self._writer.rollback(row, self._run.config.limits.max_rollbacks)

    def end(self, code: int) -> None:
        """Tells the trackers that the process ends with this exit code."""
        if self._trackers:
            self._trackers.close(self._drawn, self._writer.last_line, code)

    def close(self) -> None:
        """Ends the files, draws the curves and makes the page of the run; the ledger begins again."""
        if self._writer:
            self._goodput.note(int(self._run.progress.step), at_once=True)
            logger.info(goodput.words(self._goodput.starts))
            self._writer.close()
            curve = self._writer.path.with_name("loss_curve.png")
            try:
                loss_curve(self._writer.path, curve, self._run.task.means[0])
            except (OSError, ValueError) as error:  # The disk is full, or no loss was finite.
                logger.warning(f"there is no loss curve: {error}")
            else:
                logger.info(f"loss curve {curve}")
                score_curve(self._writer.path, curve.with_name("score_curve.png"), self._scores)
            self._drawn = [path for path in (curve, curve.with_name("score_curve.png")) if path.exists()]
            run_page.write_or_warn(self._writer.path.parent)
        self._ledger.restart()


def train_row(run: Run, info: StepInfo, clock: Clock, failed_saves: int) -> TrainRow:
    """Reads the values from the device and returns the row of the steps since the last row; every rank must call it.

    If the first step of the run is the only one of them, the row has its time, compilation included.
    """
    config, progress = run.config, run.progress
    means = run.task.mean_values(progress.take_interval())
    seconds = clock.seconds_per_step() if clock.steps else clock.first_seconds
    counted = clock.samples if clock.steps else clock.batch_size
    rate = counted / max(clock.steps, 1) / seconds
    contents = tf.constant(clock.contents, tf.float64)
    contents = Contents(*collectives.all_reduce(run.mesh.data, contents, "contents").numpy().tolist())
    achieved = contents.flops / counted * rate / run.mesh.size / 1e12
    peak = config.compute.device_peak_tflops
    # The known peaks in fp32 are those of TF32.
    if peak is None and (config.compute.precision != "fp32" or config.has_tf32):
        peak = cluster.peak_tflops(devices.device_name(), config.compute.precision)
    peaks = collectives.gather_numbers(run.mesh.world, devices.peak_memory_gb(), "peak_memory")
    return TrainRow(
        step=int(progress.step),
        loss=means["loss"],
        means={mean.name: means[mean.name] for mean in run.task.means if mean.in_training and mean.name in means},
        learning_rate=float(info.learning_rate),
        grad_norm=float(info.grad_norm),
        loss_scale=float(info.loss_scale),
        global_batch_size=clock.batch_size,
        consumed_samples=int(progress.consumed_samples),
        consumed_tokens=run.timeline.tokens(int(progress.consumed_samples)) * run.task.sequences,
        step_time_s=seconds,
        samples_per_sec=rate,
        tokens_per_sec=rate * contents.positions / counted,
        real_samples_per_sec=rate * contents.samples / counted,
        real_tokens_per_sec=rate * contents.tokens / counted,
        utilisation=contents.tokens / contents.positions,
        tflops_per_device=achieved,
        mfu=achieved / peak if peak else None,
        peak_memory_gb=float(peaks.max()),
        peak_memory_rank=int(peaks.argmax()),
        skipped_steps=int(progress.skipped_steps),
        nan_steps=int(progress.nan_steps),
        failed_saves=failed_saves,
        phase=bisect.bisect_left(run.timeline.begins, int(progress.consumed_samples)),
        max_seq_length=config.data.max_seq_length,
    )


def _write_config(run: Run) -> None:
    """Writes OUTPUT_DIR/config.json: the whole resolved configuration, package versions, ranks, host and device."""
    config = run.whole
    about = {
        "config": dataclasses.asdict(without_secrets(config)),
        "xla": config.compiles(devices.has_gpu()),
        "packages": versions(),
        "ranks": run.mesh.size,
        "host": platform.node(),
        "device": devices.device_name(),
    }
    durable.write(Path(config.run.folder) / "config.json", (json.dumps(about, indent=1) + "\n").encode())
