"""What a run says before its first step."""

import logging
from pathlib import Path

from tftrain.host import devices
from tftrain.input.source import ExampleSource
from tftrain.report.reporter import describe
from tftrain.run_state import Run
from tftrain.train import grappler

logger = logging.getLogger(__name__)


def introduce(run: Run, source: ExampleSource, done: int, resumed: Path | None) -> None:
    """Says what a run is, which of its flags have no effect, and where it begins.

    Args:
        run, source: the run, and its training split.
        done, resumed: updates so far, and the checkpoint that has them, on the chief.
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
