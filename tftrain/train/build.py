"""Builds what a run trains with: the model in the state that it starts from, and the observers of its steps."""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tftrain import hooks
from tftrain.checkpoint.folder import holds
from tftrain.config.train import TrainConfig
from tftrain.hooks import Hook
from tftrain.inputs.inputs import Inputs
from tftrain.observe import memory
from tftrain.observe.health import Health
from tftrain.observe.metrics import read_good_rows
from tftrain.observe.reporter import Reporter
from tftrain.observe.watchdog import Watchdog
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.state.best import Best
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.new_run import new_run
from tftrain.state.run_state import Run
from tftrain.state.schedule import SaveSchedule
from tftrain.state.uploads import Uploads
from tftrain.supervise.signals import Signals
from tftrain.train import grappler, introduction, memory_trace, pipeline_trace
from tftrain.train.held_out import HeldOut
from tftrain.train.memory_trace import MemoryTrace
from tftrain.train.observers import ChangePhase, CheckHealth, Evaluate, Observer, Report, Save, Watch
from tftrain.train.phases import Phases
from tftrain.train.pipeline_trace import PipelineTrace
from tftrain.train.rollback import Rollback
from tftrain.train.user_hooks import UserHooks

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """The objects of a run, in the state that it starts from."""

    run: Run
    checkpoints: Checkpoints
    phases: Phases
    reporter: Reporter
    health: Health
    best: Best | None
    hooks: Sequence[type[Hook]]  # the user's classes
    watchdog: Watchdog
    resumed: Path | None  # the checkpoint of that state; None if it is the initial one
    done: int  # updates before that state
    outside: int  # bytes that the process held before, beside those of TensorFlow's allocator
    owes_evaluation: bool  # whether a signal stopped the run before the evaluation after its last step


def build(config: TrainConfig, inputs: Inputs, mesh: Mesh, watchdog: Watchdog, uploads: Uploads) -> Built | None:
    """Builds a run and restores its state; None if there is nothing to do. Every rank must call it."""
    classes = hooks.load(config.run.hooks)
    grappler.configure(config.compute)
    baseline, outside, max_steps = memory.measure().now, memory.outside_allocator(), config.run.max_steps
    initial = inputs.open_weights(config.model, config.run.init_missing)
    run = new_run(config, mesh, initial and initial.shard)
    checkpoints = Checkpoints(run, inputs, uploads)
    phases = Phases(run, inputs.data)
    resumed = checkpoints.restore()
    done = int(run.progress.step)
    phases.begin()
    introduction.introduce(run, phases.source, done, resumed)
    is_owed = owes_evaluation(run, phases.held_out, done)
    if done >= max_steps and not is_owed:
        logger.info(f"nothing to do: --max_steps={max_steps} and {done} steps are done")
        return None
    logger.info(memory.state_line(run))
    reporter = Reporter(run, checkpoints, done, baseline, watchdog.ledger)
    watchdog.endings.append(reporter.end)
    best = best_of(run, phases.held_out, done, reporter)
    if best and best.is_exhausted:
        logger.info(f"nothing to do: --early_stopping={config.fine_tuning.early_stopping}: {best.describe()}")
        return None
    if mesh.is_chief:
        inputs.keep_tokenizer(resumed is not None)
    names = run.task.mean_values, functools.partial(run.optimizer.culprit_name, loss=run.task.loss_name)
    health = Health(config.limits, mesh, *names, reporter.spike, run.spikes)
    return Built(run, checkpoints, phases, reporter, health, best, classes, watchdog, resumed, done, outside, is_owed)


def observers_of(built: Built, signals: Signals) -> list[Observer]:
    """Returns the observers of a run's steps, in the order in which they are called."""
    run, checkpoints, phases, watchdog = built.run, built.checkpoints, built.phases, built.watchdog
    config, reporter, health, best = run.whole, built.reporter, built.health, built.best
    on_spike, schedule = config.limits.on_spike, SaveSchedule(config.checkpoint, run.mesh.is_chief)
    goes_back = on_spike == "rollback" or checkpoints.in_memory.is_on
    is_own = built.resumed is not None and holds(config.run.folder, built.resumed)
    traced = min(built.done + pipeline_trace.STEP, config.run.max_steps)
    traces_pipeline = config.log.trace_pipeline and run.mesh.pipeline_parallel_size > 1
    return [
        Watch(signals),
        CheckHealth(health, skips=on_spike == "skip"),
        *([PipelineTrace(run, phases, traced)] if traces_pipeline else []),
        Report(reporter, config.log.log_every),
        Evaluate(phases, best, reporter, health, watchdog, config.evaluation.eval_every, built.owes_evaluation),
        Save(checkpoints, schedule, health, best, watchdog, needs_first=goes_back and not is_own),
        *([MemoryTrace(run, built.done + memory_trace.STEP, built.outside)] if config.log.trace_memory else []),
        UserHooks(run, built.hooks, checkpoints.saves, signals, watchdog),
        Rollback(run, checkpoints, health, reporter, watchdog),
        ChangePhase(phases, reporter, watchdog),
    ]


def owes_evaluation(run: Run, held_out: HeldOut | None, done: int) -> bool:
    """Returns whether a signal stopped a run before the evaluation after its last step; every rank must call it."""
    config, is_owed, ended = run.config, False, int(run.progress.consumed_samples) in run.timeline.begins[1:]
    path, every = Path(config.run.folder) / "metrics.jsonl", config.evaluation.eval_every
    if run.mesh.is_chief and held_out and path.exists() and not ended:  # Else it was owed by the phase before.
        is_due = done == config.run.max_steps or (every > 0 and done > 0 and done % every == 0)
        names = {name for row in read_good_rows(path)[0] if row["step"] == done for name in row}
        is_owed = is_due and not any(name.startswith("eval_") for name in names)
    return bool(collectives.gather_numbers(run.mesh.world, float(is_owed), "evaluation.owed")[0])


def best_of(run: Run, held_out: HeldOut | None, done: int, reporter: Reporter) -> Best | None:
    """Returns the record of a run's best evaluation so far, if the task has scores; every rank must call it."""
    if held_out is None or held_out.scorer is None:
        return None
    settings = run.config.fine_tuning
    metric = settings.best_metric or run.task.scored[0]
    best = Best(run.config.run.folder, metric, settings.early_stopping, run.mesh, done)
    if best.has_lost_best:
        reporter.forget_predictions()
    return best
