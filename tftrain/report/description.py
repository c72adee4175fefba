"""What a run is, in the log before its first step: the sizes of model, data and batch, and how ranks divide them."""

from tftrain.config.ramp import Ramp
from tftrain.host import devices
from tftrain.input.source import ExampleSource
from tftrain.parallel import collectives
from tftrain.run_state import Run, division_of


def describe(run: Run, source: ExampleSource) -> str:
    """Returns the sizes of the run, for the log before the first step; `source` is the training split."""
    config, batch, data = run.config, run.config.batch, run.config.data
    examples, rows = source.real_examples, source.num_examples
    work, gpu, precision = run.task.step_flops(batch.global_batch_size), devices.has_gpu(), config.compute.precision
    xla = "XLA" if config.compiles_whole(gpu) else "XLA between the sums of tensor parallel ranks"
    parts = {
        "model": run.task.description(),
        "data": (
            f"{examples} examples{'' if rows == examples else f' in {rows} rows'} of {data.max_seq_length} tokens",
            *([] if source.mixture else [f"{rows / batch.global_batch_size:.1f} steps an epoch"]),
        ),
        "mix": (source.mixture.words(batch.ramp.samples_after(config.run.max_steps)),) if source.mixture else (),
        "batch": (
            f"{batch.global_batch_size} = {batch.micro_batch_size} samples x {batch.grad_accum_steps} micro-batches "
            f"x {run.mesh.data.size} ranks",
            f"{work / 1e12:.3f} TFLOP a step",
        ),
        "ranks": _division_words(run),
        "ramp": _ramp_words(batch.ramp),
        "sums": (collectives.transport(),) if run.mesh.size > 1 and gpu else (),
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
        words.append(f"schedule {parallel.pipeline_schedule}{chunks}")
        words.append(f"layers of the model chunks {','.join(map(str, division_of(run.config)))}")
    return (*words, f"transport {'tensorflow' if mesh.tensorflow_kinds else 'horovod'}")


def _ramp_words(ramp: Ramp) -> tuple[str, ...]:
    """Returns the description of a batch ramp; empty if the batch is full from the start."""
    stages = ramp.stages()
    if len(stages) == 1:
        return ()
    return (
        f"batches of {ramp.start} samples, then of {ramp.increment} more at a time over {ramp.samples} samples",
        f"{len(stages)} sizes",
        f"full after {stages[-1].first_step} updates",
    )
