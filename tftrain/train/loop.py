"""The training loop: what the programs call with a resolved configuration."""

import contextlib
import functools
import gc
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tftrain import hooks
from tftrain.checkpoint.folder import holds
from tftrain.config.train import TrainConfig
from tftrain.data.source import ExampleSource
from tftrain.finetune.tokenizers import write_tokenizer
from tftrain.host import devices
from tftrain.host.exit_codes import ExitCode, NotFiniteError
from tftrain.observe import memory, plot
from tftrain.observe.description import describe
from tftrain.observe.health import Health
from tftrain.observe.metrics import read_good_rows
from tftrain.observe.reporter import Clock, Reporter
from tftrain.observe.watchdog import FORCED_SECONDS, Watchdog
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.state import initial_weights
from tftrain.state.best import Best
from tftrain.state.checkpoints import Checkpoints
from tftrain.state.run_state import Run
from tftrain.state.schedule import SaveSchedule
from tftrain.state.uploads import Uploads
from tftrain.supervise.signals import Signals
from tftrain.tasks import Batch
from tftrain.train import grappler, memory_trace, pipeline_trace, rank_checks, rollback
from tftrain.train.held_out import HeldOut
from tftrain.train.memory_trace import MemoryTrace
from tftrain.train.observers import AfterStep, Evaluate, Limit, Observer, Outcome, Save, Watch
from tftrain.train.run_phases import RunPhases
from tftrain.train.step import TrainStep
from tftrain.train.user_hooks import UserHooks

logger = logging.getLogger(__name__)


def train(config: TrainConfig, mesh: Mesh, watchdog: Watchdog | None = None) -> ExitCode:
    """Trains to `max_steps`, from the state that `--resume` selects; writes a checkpoint, metrics and the loss curve.

    The configuration is resolved, with the sizes that the data gives, and the ranks are connected.

    Returns:
        DONE; STOPPED, if a signal asked for the end and the state is saved; FAILED, if a required hook raised too late.

    Raises:
        DataError, CheckpointError, UserCodeError: the message names the file or the class. FailedSavesError, if the
            last upload to an address has failed.
        NotFiniteError: too many steps in a row, the last step, the last evaluation or the state were not finite; on
            every rank.
        UnstableError: a spike after `max_rollbacks` rollbacks.
    """
    watchdog = watchdog or Watchdog(mesh.rank, config.limits, config.run.folder)
    with Uploads(config, mesh) as uploads:
        code = _train(config, mesh, watchdog, uploads)
    watchdog.tell_end(code)
    return code


def _train(config: TrainConfig, mesh: Mesh, watchdog: Watchdog, uploads: Uploads) -> ExitCode:
    classes, max_steps = hooks.load(config.run.hooks), config.run.max_steps
    grappler.configure(config.compute)
    baseline, outside = memory.measure().now, memory.outside_allocator()
    with watchdog.limit("building and restoring the model", "start_timeout_seconds"):
        run = Run(config, mesh, initial_weights.open_for(config))
        checkpoints = Checkpoints(run, uploads)
        phases = RunPhases(run)
        resumed = checkpoints.restore()
        done = int(run.progress.step)
        phases.begin()
        introduce(run, phases.source, done, resumed)
        is_owed = owes_evaluation(run, phases.held_out, done)
        if done >= max_steps and not is_owed:
            logger.info(f"nothing to do: --max_steps={max_steps} and {done} steps are done")
            return ExitCode.DONE
        logger.info(memory.state_line(run))
        reporter = Reporter(run, checkpoints, done, baseline, watchdog.ledger)
        watchdog.endings.append(reporter.end)
        best = best_of(run, phases.held_out, done, reporter)
        if best and best.is_exhausted:
            logger.info(f"nothing to do: --early_stopping={config.fine_tuning.early_stopping}: {best.words()}")
            return ExitCode.DONE
        if mesh.is_chief:
            write_tokenizer(config, resumed is not None)
    names = run.task.mean_values, functools.partial(run.optimizer.culprit_name, loss=run.task.loss_name)
    health = Health(config.limits, mesh, *names, reporter.spike, run.spikes)
    step = TrainStep(run)
    traced = min(done + pipeline_trace.STEP, max_steps) if step.clock else 0

    def stopping(name: str) -> None:
        limit = watchdog.limit(f"stopping after {name}", "preempt_save_seconds", code=ExitCode.NOT_SAVED)
        until_end.enter_context(limit)

    def end_at_once(code: int) -> None:
        watchdog.tell_end(code, FORCED_SECONDS)
        os._exit(code)

    logger.info("compiling the step ...")
    checkpoints.prepare()
    with contextlib.ExitStack() as until_end, Signals(stopping, end_at_once) as signals, checkpoints.saves:
        schedule, on_spike = SaveSchedule(config.checkpoint, mesh.is_chief), config.limits.on_spike
        evaluate = Evaluate(phases.held_out, best, reporter, health, watchdog, config.evaluation.eval_every)
        user_hooks = UserHooks(run, classes, checkpoints.saves, signals, watchdog)
        observers = [
            Watch(signals),
            AfterStep(lambda after: health.observe(after.number, after.info, after.is_last)),
            AfterStep(lambda after: pipeline_trace.write(run, step.clock) if after.number == traced else None),
            AfterStep(lambda after: reporter.step(after.number, after.info, after.is_due(config.log.log_every))),
            evaluate,
            Save(checkpoints, schedule, health, best, watchdog),
            *([MemoryTrace(run, done + memory_trace.STEP, outside)] if config.log.trace_memory else []),
            user_hooks,
            *([Limit(lambda: health.limits()[0]), Limit(lambda: health.limits()[1])] if on_spike == "skip" else []),
        ]
        is_own = resumed is not None and holds(config.run.folder, resumed)
        if (on_spike == "rollback" or checkpoints.in_memory.is_on) and not is_own:
            with watchdog.limit("the first checkpoint", "save_timeout_seconds", kind="checkpoints"):
                checkpoints.save()  # There is one to go back to from the first step on.
        outcome, goes_back = Outcome(done, None, is_last=done >= max_steps), False
        for observer in [evaluate, user_hooks] if is_owed else []:
            observer.between_steps(outcome)
        while goes_back or not outcome.is_last:
            outcome = take_steps(run, step, phases.batches(), observers, reporter.clock, watchdog)
            goes_back = health.has_spike()
            if not goes_back:
                phases.end()
            if outcome.is_stopped or (outcome.is_last and not goes_back):
                break
            if goes_back:
                with watchdog.limit("going back to a checkpoint", "start_timeout_seconds", kind="start"):
                    rollback.go_back(run, checkpoints, health, reporter, observers)
            if not phases.begin():
                continue
            logger.info(phases.words())
            reporter.begin_phase(int(run.progress.step))
            evaluate.held_out, step = phases.held_out, TrainStep(run)
            gc.collect()  # The graphs of the phase before refer to themselves.
        for observer in observers:
            observer.finish()
    with watchdog.limit("drawing the loss curve", "exit_timeout_seconds", outcome.exit_code or ExitCode.STALLED):
        reporter.close()
    conclude(outcome, best)
    if health.problem and not outcome.is_stopped:
        raise NotFiniteError(f"the run does not end with finite numbers: {health.problem}")
    return outcome.exit_code or (ExitCode.FAILED if user_hooks.has_failed else ExitCode.DONE)


def owes_evaluation(run: Run, held_out: HeldOut | None, done: int) -> bool:
    """Returns whether a signal stopped a run before the evaluation after its last step; every rank must call it."""
    config, is_owed, ended = run.config, False, int(run.progress.consumed_samples) in run.timeline.begins[1:]
    path, every = Path(config.run.folder) / "metrics.jsonl", config.evaluation.eval_every
    if run.mesh.is_chief and held_out and path.exists() and not ended:  # Else it was owed by the phase before.
        is_due = done == config.run.max_steps or (every > 0 and done > 0 and done % every == 0)
        names = {name for row in read_good_rows(path)[0] if row["step"] == done for name in row}
        is_owed = is_due and not any(name.startswith("eval_") for name in names)
    return bool(collectives.gather_numbers(run.mesh.world, float(is_owed), "evaluation.owed")[0])


def conclude(outcome: Outcome, best: Best | None) -> None:
    """Says why a run has stopped, or its best score."""
    if outcome.is_stopped:
        number = outcome.number
        saved = "a spike, so that the last checkpoint stays" if outcome.goes_back else "and the state is saved"
        logger.info(f"stopped after step {number}, {saved}: start the same command again to continue")
    elif best:
        logger.info(best.words())


def take_steps(
    run: Run, step: TrainStep, batches: Iterator[Batch], observers: Sequence[Observer], clock: Clock, watchdog: Watchdog
) -> Outcome:
    """Takes steps until one is the last, there are no more batches, or the run must go back; returns its outcome.

    `batches` are this rank's shares of the global batches. `clock` counts the seconds of the steps, and `watchdog`
    limits them.
    """
    done, max_steps = int(run.progress.step), run.config.run.max_steps
    for number in range(done + 1, max_steps + 1):
        with watchdog.limit(f"reading the batch of step {number}", "step_timeout_seconds", kind="data"):
            batch = next(batches, None)
        if batch is None:
            break
        size = run.task.batch_size(batch) * run.mesh.data.size, batch["input_ids"].shape[1]
        compiles = clock.compiles(*size)
        timeout = "start_timeout_seconds" if compiles else "step_timeout_seconds"
        with watchdog.limit(f"step {number}", timeout, kind="compile" if compiles else "steps"):
            requests = np.array([observer.request() for observer in observers], np.float32)
            if number == done + 1:
                rank_checks.before_first_step(step, batch, requests, run.mesh)
            with clock.step(*size, run.task.contents(batch)):
                info = step(batch, requests)
            outcome = Outcome(number, info, is_last=number == max_steps)
            for observer, request in zip(observers, info.requests.numpy().tolist(), strict=True):
                observer.after_step(outcome, request)
        with clock.pause():
            for observer in observers:
                observer.between_steps(outcome)
        if outcome.is_last or outcome.goes_back:
            break
    return outcome


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


def introduce(run: Run, source: ExampleSource, done: int, resumed: Path | None) -> None:
    """Says what a run is, which of its flags have no effect, and where it begins; the chief knows the checkpoint."""
    config, split = run.config, run.optimizer.state.split
    logger.info(describe(run, source))
    logger.info(run.task.implementations())
    if note := grappler.without_effect(config.compute, run.jit, devices.has_gpu()):
        logger.info(note)
    if not config.compute.sparse_as_dense and (split or run.mesh.pipeline.size > 1):
        reason = "with sharded state, gradients travel dense to their owners" if split else "not with pipeline stages"
        logger.info(f"--sparse_as_dense=false has no effect: {reason}")
    if config.log.trace_pipeline and run.mesh.pipeline.size == 1:
        logger.info("--trace_pipeline has no effect: there is one pipeline stage")
    if config.log.trace_memory and config.run.max_steps < done + memory_trace.STEP:
        logger.info(f"--trace_memory has no effect: the run has fewer than {memory_trace.STEP} steps")
    if (dtype := config.batch.grad_accum_dtype) != "fp32" and config.batch.grad_accum_steps == 1:
        logger.info(f"--grad_accum_dtype={dtype} has no effect: an update is one micro-batch")
    if config.parallel.splits_state and not split:
        where = " on each host" if run.mesh.split_size else ""
        logger.info(
            "--split_opt_state, --split_grad_accum and --split_weights have no effect: there is one data parallel rank"
            f"{where}"
        )
    if config.log.plot_schedule and run.mesh.is_chief:
        path = Path(config.run.folder) / "schedule.png"
        plot.schedule_curve(run.whole, path)
        logger.info(f"schedule {path}")
    checkpoint = config.checkpoint
    if not checkpoint.saves_before(config.run.max_steps):
        logger.info(
            f"--checkpoint_every={checkpoint.checkpoint_every} and --checkpoint_minutes=0: there is no checkpoint "
            "before the end; a run that is killed loses all its steps"
        )
    initial = config.run.init_checkpoint or "random weights"
    logger.info(f"continuing after step {done} of {resumed}" if resumed else f"starting from {initial}")
