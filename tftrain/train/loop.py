"""The training loop, and the evaluation of a checkpoint: what the programs call with a resolved configuration."""

import contextlib
import functools
import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tftrain import devices, log
from tftrain.checkpoint.errors import AgreedCheckpointError
from tftrain.config import TrainConfig
from tftrain.data import pipeline
from tftrain.data.source import ExampleSource
from tftrain.exit_codes import ExitCode, NotFiniteError
from tftrain.labelled.preflight import identity
from tftrain.labelled.tokenizers import write_tokenizer
from tftrain.model.part import ModelPart, joined
from tftrain.optim.state import load_weights, weight_restore_buffers
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.report import memory, predictions
from tftrain.report.health import Health
from tftrain.report.reporter import Reporter, describe
from tftrain.run_state import Evaluation, Run, parts_of_rank
from tftrain.saving import initial_weights, resume, resume_compatibility
from tftrain.saving.best import Best
from tftrain.saving.checkpoints import Checkpoints
from tftrain.saving.schedule import SaveSchedule
from tftrain.supervise.signals import Signals
from tftrain.supervise.watchdog import Watchdog
from tftrain.tasks import Task, make_task
from tftrain.train import grappler, pipeline_trace, rank_checks
from tftrain.train.evaluate import HeldOut
from tftrain.train.pipeline_trace import PipelineTrace
from tftrain.train.step import TrainStep

logger = logging.getLogger(__name__)

LARGEST_EXPONENT = 709  # of e in a float64


def train(config: TrainConfig, mesh: Mesh, watchdog: Watchdog | None = None) -> ExitCode:
    """Trains to `max_steps`, from the state that `--resume` selects; writes a checkpoint, metrics and the loss curve.

    Args:
        config: resolved, with the sizes that the data gives filled in.
        mesh: the ranks, already connected.
        watchdog: of this process; by default a new one.

    Returns:
        DONE; or STOPPED, if a signal asked for the end and the state is saved.

    Raises:
        DataError, CheckpointError: the message names the file.
        NotFiniteError: too many steps in a row, the last step, the last evaluation or the state were not finite; on
            every rank.
    """
    watchdog, max_steps = watchdog or Watchdog(mesh.rank, config.limits, config.run.output_dir), config.run.max_steps
    grappler.configure(config.compute)
    baseline = memory.measure().now
    with watchdog.limit("building and restoring the model", "start_timeout_seconds"):
        initial = initial_weights.open_for(config)
        run = Run(config, mesh, initial)
        checkpoints = Checkpoints(run)
        source = run.task.open_source(config.data, "train", config.run.seed)
        resumed = checkpoints.restore()
        done = int(run.progress.step)
        introduce(run, source, done, resumed)
        if done >= max_steps:
            logger.info(f"nothing to do: --max_steps={max_steps} and {done} steps are done")
            return ExitCode.DONE
        logger.info(memory.state_line(run))
        reporter = Reporter(run, checkpoints.saves, done, baseline)
        clock = reporter.clock
        evaluates = config.evaluation.eval_every >= 0 and run.task.has_held_out(config.data)
        held_out = HeldOut(config, run.task, run.parts, mesh, run.jit) if evaluates else None
        best = best_of(config, held_out, mesh, done)
        if best and best.is_exhausted:
            logger.info(f"nothing to do: --early_stopping={config.fine_tuning.early_stopping}: {best.words()}")
            return ExitCode.DONE
        if mesh.is_chief:
            write_tokenizer(config, resumed is not None)
    health = Health(config.limits, mesh, run.task.mean_values, run.optimizer.culprit_name, reporter.spike)
    step = TrainStep(run)
    trace = PipelineTrace(run, step.clock) if step.clock else None
    batches = iter(
        pipeline.ramped_batches(
            source,
            config.data,
            config.run.seed,
            int(run.progress.consumed_samples),
            config.batch.ramp,
            mesh.data.share,
            max_steps - done,
        )
    )

    schedule = SaveSchedule(config.checkpoint, mesh.is_chief)

    def requests() -> np.ndarray:
        return np.concatenate([signals.requests(), schedule.requests()])

    def stopping(name: str) -> None:
        stopped.enter_context(watchdog.limit(f"stopping after {name}", "preempt_save_seconds", code=ExitCode.NOT_SAVED))

    logger.info("compiling the step ...")
    checkpoints.prepare()
    with contextlib.ExitStack() as stopped, Signals(stopping) as signals, checkpoints.saves:
        for number in range(done + 1, max_steps + 1):
            with watchdog.limit(f"reading the batch of step {number}", "step_timeout_seconds"):
                batch = next(batches)
            size = run.task.batch_size(batch) * mesh.data.size, batch["input_ids"].shape[1]
            timeout = "start_timeout_seconds" if clock.compiles(*size) else "step_timeout_seconds"
            with watchdog.limit(f"step {number}", timeout):
                if number == done + 1:
                    rank_checks.before_first_step(step, batch, requests(), mesh)
                with clock.step(*size, run.task.contents(batch)):
                    info = step(batch, requests())
                signal_request, save_request = np.split(info.requests.numpy(), 2)
                stop = signals.stop_requested(signal_request)
                last = stop or number == max_steps
                health.observe(number, info, last)
                if trace and number == min(done + pipeline_trace.STEP, max_steps):
                    trace.write()
                reporter.step(number, info, last or due(number, config.log.log_every))
                if is_due := schedule.is_due(number, save_request):
                    health.settle()
            is_best = False
            if held_out and not stop and (last or due(number, config.evaluation.eval_every)):
                with clock.pause(), watchdog.limit(f"evaluation after step {number}", "step_timeout_seconds") as limit:
                    result = held_out(limit.restart)
                    reporter.evaluation(number, result)
                if best:
                    is_best = best.observe(number, result.scores[best.metric])
                    checkpoints.saves.keep_step = best.step
                    last = last or best.is_exhausted
                if is_best and mesh.is_chief:
                    predictions.write(config.run.output_dir, held_out.scorer, result.outputs)
                if last:
                    health.settle()
                    health.observe_evaluation(number, result)
            if last or ((is_due or is_best) and not health.problem):
                with clock.pause(), watchdog.limit(f"the checkpoint of step {number}", "save_timeout_seconds"):
                    checkpoints.save(last, not health.problem)
                schedule.saved()
            if last:
                break
        with watchdog.limit("the last checkpoint", "save_timeout_seconds"):
            checkpoints.finish()
    code = ExitCode.STOPPED if stop else ExitCode.STALLED
    with watchdog.limit("drawing the loss curve", "exit_timeout_seconds", code):
        reporter.close()
    if stop:
        logger.info(f"stopped after step {number}, and the state is saved: start the same command again to continue")
        return ExitCode.STOPPED
    if best:
        logger.info(best.words())
    if health.problem:
        raise NotFiniteError(f"the run does not end with finite numbers: {health.problem}")
    return ExitCode.DONE


def introduce(run: Run, source: ExampleSource, done: int, resumed: Path | None) -> None:
    """Says what is worth knowing before the first step.

    Args:
        run: its sizes, and which flags have no effect.
        source: the training split.
        done: updates so far.
        resumed: the checkpoint that the run continues from, on the chief.
    """
    config, split = run.config, run.optimizer.state.split
    logger.info(describe(run, source))
    logger.info(run.task.implementations())
    if note := grappler.without_effect(config.compute, run.jit, devices.has_gpu()):
        logger.info(note)
    if not config.compute.sparse_as_dense and (split or run.mesh.pipeline.size > 1):
        reason = "with split state, gradients travel dense to their owners" if split else "not with pipeline stages"
        logger.info(f"--sparse_as_dense=false has no effect: {reason}")
    if config.log.trace_pipeline and run.mesh.pipeline.size == 1:
        logger.info("--trace_pipeline has no effect: there is one pipeline stage")
    if (dtype := config.batch.grad_accum_dtype) != "fp32" and config.batch.grad_accum_steps == 1:
        logger.info(f"--grad_accum_dtype={dtype} has no effect: an update is one micro-batch")
    if config.parallel.splits_state and not split:
        logger.info("--split_opt_state and --split_grad_accum have no effect: there is one data parallel rank")
    checkpoint = config.checkpoint
    if not checkpoint.saves_before(config.run.max_steps):
        logger.info(
            f"--checkpoint_every={checkpoint.checkpoint_every} and --checkpoint_minutes=0: there is no checkpoint "
            "before the end; a run that is killed loses all its steps"
        )
    initial = config.run.init_checkpoint or "random weights"
    logger.info(f"continuing after step {done} of {resumed}" if resumed else f"starting from {initial}")


def evaluate(config: TrainConfig, mesh: Mesh, watchdog: Watchdog | None = None) -> ExitCode:
    """Prints held-out loss and accuracy of the checkpoint that `--resume` means.

    Args:
        config: resolved, with the sizes that the data gives filled in.
        mesh: the ranks, already connected.
        watchdog: of this process; by default a new one.

    Returns:
        DONE; or FAILED, if the result can't be printed.

    Raises:
        DataError, CheckpointError: the message names the file.
    """
    watchdog = watchdog or Watchdog(mesh.rank, config.limits, config.run.output_dir)
    with watchdog.limit("loading the checkpoint", "start_timeout_seconds"):
        parts = parts_of_rank(config, mesh)
        task, path, step = load_task(config, parts, mesh)
    with watchdog.limit("a batch of the evaluation", "step_timeout_seconds") as limit:
        held_out = HeldOut(config, task, parts, mesh, config.compiles_whole(devices.has_gpu()))
        result = held_out(limit.restart)
        # Horovod ends on all ranks when one rank ends, but other groups of ranks may still be adding up their sums.
        collectives.gather_numbers(mesh.world, 0.0, "evaluated")
    lines = {"checkpoint": f"{path} (step {step})", **evaluation_lines(task, result)}
    logger.info("\n".join(f"{name:24}{value}" for name, value in lines.items()))
    if result.outputs is not None and mesh.is_chief:
        predictions.write(config.run.output_dir, held_out.scorer, result.outputs)
    # The lines are all that an evaluation leaves.
    return ExitCode.FAILED if log.lines_are_lost() else ExitCode.DONE


def evaluation_lines(task: Task, result: Evaluation) -> dict[str, str]:
    """Returns the result of an evaluation in words: titles and values."""
    loss, *others = [mean for mean in task.means if mean.in_evaluation]
    value = result.means[loss.name]
    part = "" if result.examples == result.split_examples else f" of {result.split_examples}"
    found = {"held-out examples": f"{result.examples}{part}", loss.title: f"{value:.4f}"}
    if result.unigram_nats is not None:
        perplexity = math.inf if value > LARGEST_EXPONENT else math.exp(value)
        found |= {
            loss.title: f"{value:.4f} nats (perplexity {perplexity:.2f})",
            "unigram entropy": f"{result.unigram_nats:.4f} nats, of the same text",
            "learned from context": f"{result.unigram_nats - value:.4f} nats",
        }
    return found | {
        **{name.replace("_", " "): f"{score:.4f}" for name, score in result.scores.items()},
        **{mean.title: f"{result.means[mean.name]:.4f}" for mean in others},
    }


def load_task(config: TrainConfig, parts: Sequence[ModelPart], mesh: Mesh) -> tuple[Task, Path, int]:
    """Returns the task with the weights of the checkpoint that `--resume` means, and that one's path and step.

    Args:
        config: of the run, resolved.
        parts: the layers of this rank.
        mesh: the ranks.

    Raises:
        CheckpointError: the message names the file.
    """
    initial = initial_weights.open_for(config)
    task = make_task(config, mesh, joined(parts), initial)
    if initial:
        return task, Path(initial.path), 0
    named = task.named_variables() | task.copies()
    buffers = functools.partial(weight_restore_buffers, named, task.pieces)
    reader = resume.choose(config, mesh, buffers)
    if reader is None:
        output_dir = f"--output_dir={config.run.output_dir}"
        raise AgreedCheckpointError(f"{output_dir}: no checkpoint to evaluate; train first, or name one with --resume")
    resume_compatibility.check_model(config, identity(config), reader.manifest.run, reader.path)
    load_weights(named, task.pieces, reader)
    return task, reader.path, reader.manifest.step


def best_of(config: TrainConfig, held_out: HeldOut | None, mesh: Mesh, done: int) -> Best | None:
    """Returns the record of the best evaluation of a run whose predictions are scored; every rank must call it."""
    if held_out is None or held_out.scorer is None:
        return None
    settings = config.fine_tuning
    metric = settings.best_metric or held_out.scorer.metrics[0]
    return Best(config.run.output_dir, metric, settings.early_stopping, mesh, done)


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one; never if `every` is 0 or less."""
    return every > 0 and step % every == 0
