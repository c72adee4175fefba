"""What a run is, in the log before its first step: its sizes, how ranks divide them, and flags without effect."""

import logging
import math
from pathlib import Path

from tftrain.config.phases import FLAGS
from tftrain.config.ramp import Ramp
from tftrain.data.example_source import ExampleSource
from tftrain.host import devices, hardware
from tftrain.observe import plot
from tftrain.parallel import collectives
from tftrain.state.run_state import Run, division_of
from tftrain.train import grappler, memory_trace

logger = logging.getLogger(__name__)

# XLA captures products and custom calls by cuStreamBeginCaptureToGraph, which came with this version of CUDA
# (command_buffer_scheduling.cc of TensorFlow 2.20's XLA).
GRAPHS_SINCE = (12, 3)


def introduce(run: Run, source: ExampleSource, done: int, resumed: Path | None) -> None:
    """Says what a run is, which of its flags have no effect, and where it begins; the chief knows the checkpoint."""
    config, split = run.config, run.optimizer.state.split
    logger.info(describe(run, source))
    logger.info(run.task.implementations())
    if note := grappler.without_effect(config.compute, run.jit, devices.has_gpu()):
        logger.info(note)
    if note := graphs_note(config.compute.cuda_graphs, run.jit and devices.has_gpu(), hardware.cuda_version()):
        logger.info(note)
    if run.sums_by_xla and run.mesh.data.size == 1:
        logger.info("--gradient_transport=xla has no effect: there is one data parallel rank")
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
        reason = f"there is one data parallel rank{' on each host' if run.mesh.split_size else ''}"
        logger.info(f"--split_opt_state, --split_grad_accum and --split_weights have no effect: {reason}")
    if config.log.plot_schedule and run.mesh.is_chief:
        path = Path(config.run.folder) / "schedule.png"
        plot.schedule_curve(config.optimizer, config.run.max_steps, run.timeline, path)
        logger.info(f"schedule {path}")
    checkpoint = config.checkpoint
    if not checkpoint.saves_before(config.run.max_steps):
        flags = f"--checkpoint_every={checkpoint.checkpoint_every} and --checkpoint_minutes=0"
        logger.info(f"{flags}: there is no checkpoint before the end; a run that is killed loses all its steps")
    initial = config.run.init_checkpoint or "random weights"
    logger.info(f"continuing after step {done} of {resumed}" if resumed else f"starting from {initial}")


def graphs_note(wanted: bool, may_have: bool, cuda: tuple[int, int] | None) -> str:
    """Returns a line on a run without the CUDA graphs that its flags name, `wanted`, else "".

    `may_have`: whether XLA compiles the step for a GPU. `cuda`: the newest version that the driver supports, or None.
    """
    if not wanted and not may_have:
        return "--cuda_graphs=false has no effect: XLA does not compile the step for a GPU"
    if wanted and may_have and cuda and cuda < GRAPHS_SINCE:
        given, least = ("{}.{}".format(*each) for each in (cuda, GRAPHS_SINCE))
        reason = f"the driver supports CUDA {given}, they need {least} (driver 545 or newer)"
        return f"XLA leaves matrix products and fused ops out of CUDA graphs: {reason}; the step is slower"
    return ""


def describe(run: Run, source: ExampleSource) -> str:
    """Returns the sizes of the run, for the log before the first step; `source` is the training split."""
    config, batch, data, phases = run.config, run.config.batch, run.config.data, run.timeline.phases
    phase, _ = run.timeline.at(int(run.progress.consumed_samples))
    begin, *later = run.timeline.begins[phase:]
    end = min(run.timeline.samples_after(config.run.max_steps), *later[:1], math.inf)
    examples, rows = source.real_examples, source.num_examples
    work, gpu, precision = run.task.step_flops(batch.global_batch_size), devices.has_gpu(), config.compute.precision
    xla = "XLA" if config.compiles_whole(gpu) else "XLA between the sums of tensor parallel ranks"
    parts = {
        "model": run.task.description(),
        "data": (
            f"{examples} examples{'' if rows == examples else f' in {rows} rows'} of {data.max_seq_length} tokens",
            *([] if source.mixture else [f"{rows / batch.global_batch_size:.1f} steps an epoch"]),
        ),
        "mix": (source.mixture.describe(end, begin),) if source.mixture else (),
        "batch": (
            f"{batch.global_batch_size} = {batch.micro_batch_size} samples x {batch.grad_accum_steps} micro-batches "
            f"x {run.mesh.data.size} ranks",
            f"{work / 1e12:.3f} TFLOP a step",
        ),
        "ranks": _division_words(run),
        "ramp": _ramp_words(batch.ramp, begin),
        "phases": ("\n".join(describe_phase(run, each) for each in range(len(phases))),) if len(phases) > 1 else (),
        "sums": (collectives.transport(), *["gradients by XLA"] * run.sums_by_xla) if run.mesh.size > 1 and gpu else (),
        "compute": (
            precision + (" (products in TF32)" if precision == "fp32" and gpu and config.has_tf32 else ""),
            devices.device_name(),
            xla if config.compiles(gpu) else "graph mode",
            f"{config.optimizer.optimizer} ({'fused' if run.optimizer.is_fused else 'plain TensorFlow'})",
        ),
    }
    return "\n".join(f"{name:8} {', '.join(words)}" for name, words in parts.items() if words)


def _division_words(run: Run) -> tuple[str, ...]:
    """Returns how ranks divide the model; empty if each has all of it."""
    mesh, parallel, stages = run.mesh, run.config.parallel, run.mesh.pipeline_parallel_size
    if mesh.tensor_parallel_size == stages == 1:
        return ()
    words = [f"data {mesh.data.size} x tensor {mesh.tensor_parallel_size} x pipeline {stages}"]
    if parallel.sequence_parallel:
        words.append("sequence parallel")
    if stages > 1:
        chunks = f", {parallel.virtual_pipeline_size} chunks" if parallel.virtual_pipeline_size > 1 else ""
        layers = ",".join(map(str, division_of(run.whole.model, run.whole.data, parallel)))
        words += [f"schedule {parallel.pipeline_schedule}{chunks}", f"layers of the model chunks {layers}"]
    return (*words, f"transport {'tensorflow' if mesh.tensorflow_kinds else 'horovod'}")


def describe_phase(run: Run, number: int) -> str:
    """Returns a line on a phase: its updates and samples, and its flags, without those that all phases have."""
    timeline, steps = run.timeline, run.timeline.steps(run.config.run.max_steps)[number]
    every = [vars(phase.data) | vars(phase.batch) for phase in timeline.phases]
    always = ("max_seq_length", "global_batch_size")
    shown = [name for name in FLAGS if name in always or len({own[name] for own in every}) > 1]
    words = ", ".join(f"{name}={every[number][name]}" for name in shown if every[number][name] is not None)
    when = f"steps {steps.start + 1} to {steps.stop}, from sample {timeline.begins[number]}" if steps else "no step"
    return f"phase {number + 1} of {len(every)}: {when}: {words}"


def _ramp_words(ramp: Ramp, first_sample: int) -> tuple[str, ...]:
    """Returns the description of a batch ramp; empty if the batch is full from the first sample on."""
    stages = ramp.stages(first_sample)
    if len(stages) == 1:
        return ()
    return (
        f"batches of {ramp.start} samples, then of {ramp.increment} more at a time over {ramp.samples} samples",
        f"{len(stages)} sizes",
        f"full after {stages[-1].first_step} updates",
    )
