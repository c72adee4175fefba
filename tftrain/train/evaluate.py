"""The evaluation of a checkpoint (`--mode=evaluate`)."""

import functools
import logging
import math
from pathlib import Path

from tftrain.checkpoint.errors import AgreedCheckpointError
from tftrain.checkpoint.tensor_slice import AVERAGE, MASTER
from tftrain.config.train import TrainConfig
from tftrain.formats.run_folder import NO_AVERAGE
from tftrain.host.units import shown
from tftrain.inputs.inputs import Inputs
from tftrain.model.part import joined
from tftrain.observe import predictions, rows
from tftrain.observe.health import NOTHING_PREDICTED
from tftrain.observe.rows import EvalRow
from tftrain.observe.watchdog import Watchdog
from tftrain.optim.restore_buffers import restore_buffers
from tftrain.optim.state import load_pieces, weights_of
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.state import resume, resume_compatibility
from tftrain.state.run_state import Evaluation, Run, parts_of_rank
from tftrain.tasks import Task, make_task
from tftrain.train.held_out import HeldOut
from tftrain.train.sharded import ShardedModel

logger = logging.getLogger(__name__)

LARGEST_EXPONENT = 709  # e to the power of more is no float64


def evaluate(config: TrainConfig, inputs: Inputs, mesh: Mesh, watchdog: Watchdog | None = None) -> EvalRow:
    """Evaluates the checkpoint that `--resume` means, prints the result, and returns it; an error names the file."""
    watchdog = watchdog or Watchdog(mesh.rank, config.limits, config.run.folder)
    with watchdog.limit("loading the checkpoint", "start_timeout_seconds"):
        parts = parts_of_rank(config.model, config.data, config.parallel, mesh)
        initial = inputs.open_weights(config.model, config.run.init_missing)
        task, run = make_task(config, mesh, joined(parts), initial and initial.shard), None
        if config.shards_weights(mesh.split.size):
            run = Run(task, parts, mesh, trains=False)
            logger.info(f"weights  each rank holds one of {mesh.split.size} shards")
        path, step = (Path(initial.path), 0) if initial else load_weights(task, run, inputs, mesh)
    with watchdog.limit("a batch of the evaluation", "step_timeout_seconds") as limit:
        held_out = HeldOut(config, inputs.data[-1], task, parts, mesh, run and ShardedModel(run))
        result = held_out(limit.restart)
        # Horovod ends on all ranks when one rank ends, but other groups of ranks may still be adding up their sums.
        collectives.gather_numbers(mesh.world, 0.0, "evaluated")
    if result.means["loss"] is None and not result.scores:
        logger.info(NOTHING_PREDICTED)
    logger.info(evaluation_lines(task, f"{path} (step {step})", result))
    if result.outputs is not None and mesh.is_chief:
        predictions.write(config.run.folder, held_out.scorer, result.outputs)
    return rows.of_evaluation(step, task.means, result)


def evaluation_lines(task: Task, checkpoint: str, result: Evaluation) -> str:
    """Returns the result of an evaluation in words, a title and its value on each line."""
    loss, *others = [mean for mean in task.means if mean.in_evaluation]
    value = result.means[loss.name]
    part = "" if result.examples == result.split_examples else f" of {result.split_examples}"
    lines = {"checkpoint": checkpoint, "held-out examples": f"{result.examples}{part}"}
    if value is not None or not result.scores:  # A ranking of documents has no loss.
        lines[loss.title] = shown(value)
    if result.unigram_nats is not None and value is not None:
        perplexity = math.inf if value > LARGEST_EXPONENT else math.exp(value)
        lines |= {
            loss.title: f"{value:.4f} nats (perplexity {perplexity:.2f})",
            "unigram entropy": f"{result.unigram_nats:.4f} nats, of the same text",
            "learned from context": f"{result.unigram_nats - value:.4f} nats",
        }
    for name, score in result.scores.items():
        score_name, slash, source = name.partition("/")
        lines[score_name.replace("_", " ") + slash + source] = f"{score:.4f}"
    lines |= {mean.title: shown(result.means[mean.name]) for mean in others}
    return "\n".join(f"{title:23} {value}" for title, value in lines.items())


def load_weights(task: Task, run: Run | None, inputs: Inputs, mesh: Mesh) -> tuple[Path, int]:
    """Gives a task the weights of the checkpoint that `--resume` means; returns the checkpoint's path and step.

    `run` holds shards of the weights; None: each rank holds all of its weights.
    """
    config = task.config
    kind = AVERAGE if config.evaluation.weights == "averaged" else MASTER
    if run:
        held = run.optimizer.state.weights(kind)
    else:
        held = weights_of(task.model.held_variables(), task.model.shards, kind)
    reader = resume.Search(config.checkpoint, config.run, mesh, functools.partial(restore_buffers, held)).choose()
    if reader is None:
        output_dir = f"--output_dir={config.run.folder}"
        raise AgreedCheckpointError(f"{output_dir}: no checkpoint to evaluate; train first, or name one with --resume")
    resume_compatibility.check_model(config.model, inputs.identity, reader.manifest.run, reader.path)
    if kind == AVERAGE and not any(name.startswith(f"{kind}/") for name in reader.tensors):
        raise AgreedCheckpointError(f"{reader.path}: --weights=averaged: {NO_AVERAGE}")
    load_pieces(held, reader)
    return reader.path, reader.manifest.step
