"""The training loop, and evaluation of a checkpoint: what the programs call with a resolved configuration."""

import functools
import math
from pathlib import Path

from tftrain.checkpoint.errors import CheckpointError
from tftrain.config import DataConfig, TrainConfig
from tftrain.data import pipeline
from tftrain.data.manifest import read_manifest
from tftrain.model.bert import BertPretrainer
from tftrain.optim.state import load_weights
from tftrain.parallel.mesh import Mesh
from tftrain.train import agreed, continuing, devices, grappler, memory, resume
from tftrain.train.evaluate import Evaluation, Evaluator
from tftrain.train.metrics import EvalRow, MetricsWriter
from tftrain.train.plot import loss_curve
from tftrain.train.report import Clock, describe, train_row
from tftrain.train.session import Run, make_model, say, wants_jit, write_config
from tftrain.train.step import TrainStep


class HeldOut:
    """The held-out split and the compiled forward pass over it."""

    def __init__(self, config: TrainConfig, model: BertPretrainer, mesh: Mesh, jit: bool):
        """Opens the split; nothing is read before the first call."""
        self._config, self._mesh = config, mesh
        self._source = pipeline.open_source(config.data, "eval", config.model.vocab_size, config.run.seed)
        self._evaluate = Evaluator(model, config.model.vocab_size, mesh, jit)

    def __call__(self) -> Evaluation:
        """Evaluates the model as it is now; every rank must call it."""
        # One forward pass takes a micro-batch: evaluation needs no more memory than training.
        samples = self._config.batch.micro_batch_size * self._mesh.data.size
        limit = self._config.run.eval_batches * self._config.batch.global_batch_size // samples
        return self._evaluate(
            pipeline.eval_batches(self._source, self._config.data, samples, *self._mesh.data.share(samples), limit)
        )


def train(config: TrainConfig, mesh: Mesh) -> None:
    """Trains to `max_steps` from the state that `--resume` means, and leaves checkpoint, metrics and loss curve.

    Args:
        config: resolved, with the sizes that the data gives filled in.
        mesh: the ranks, already connected.

    Raises:
        DataError, CheckpointError: the message names the file.
    """
    grappler.configure(config.compute)
    baseline = memory.measure().now
    run, settings = Run(config, mesh), config.run
    source = pipeline.open_source(config.data, "train", config.model.vocab_size, settings.seed)
    resumed = run.restore()
    done = int(run.progress.step)
    say(mesh, describe(run, source.num_examples))
    if note := grappler.without_effect(config.compute, run.jit, devices.has_gpu()):
        say(mesh, note)
    if not config.compute.sparse_as_dense and run.optimizer.state.split:
        say(mesh, "--sparse_as_dense=false has no effect: with split state, gradients travel dense to their owners")
    if config.parallel.splits_state and not run.optimizer.state.split:
        say(mesh, "--split_opt_state and --split_grad_accum have no effect: there is one data parallel rank")
    say(mesh, f"continuing after step {done} of {resumed}" if resumed else "starting from random weights")
    if done >= settings.max_steps:
        say(mesh, f"nothing to do: --max_steps={settings.max_steps} and {done} steps are done")
        return
    say(mesh, memory.state_line(run))
    writer = MetricsWriter(settings.output_dir, settings.max_steps) if mesh.is_chief else None
    if writer:
        writer.truncate_after(done)
        write_config(config, mesh)
    held_out = HeldOut(config, run.model, mesh, run.jit) if has_held_out(config.data) else None
    step = TrainStep(config, run.model, run.optimizer, run.loss_scale, run.progress, mesh, run.jit)
    batches = pipeline.ramped_batches(
        source,
        config.data,
        settings.seed,
        int(run.progress.consumed_samples),
        config.batch.ramp,
        mesh.data.share,
        settings.max_steps - done,
    )
    say(mesh, "compiling the step ...")
    clock = Clock()
    for number, batch in enumerate(batches, start=done + 1):
        if number == done + 1:
            agreed.before_first_step(step, batch, mesh)
        with clock.step(batch["input_ids"].shape[0] * mesh.data.size):
            info = step(batch)
        if writer:
            writer.advance(number)
        last = number == settings.max_steps
        if number == min(done + 2, settings.max_steps):  # The first step has held what compilation took, too.
            with clock.pause():
                row, table = memory.report(run, number, baseline)
                if writer:
                    writer.memory(row, table)
        if last or due(number, settings.log_every):
            row = train_row(run, info, clock)
            if writer:
                writer.train(row)
            clock.start()
        with clock.pause():
            if held_out and (last or due(number, settings.eval_every)):
                result = held_out()
                if writer:
                    writer.evaluation(
                        EvalRow(number, result.mlm_loss, result.unigram_nats, result.mlm_accuracy, result.nsp_accuracy)
                    )
            if last or due(number, settings.checkpoint_every):
                run.save()
    run.finish()
    if writer:
        writer.close()
        curve = Path(settings.output_dir) / "loss_curve.png"
        loss_curve(Path(settings.output_dir) / "metrics.jsonl", curve)
        say(mesh, f"loss curve {curve}")


def evaluate(config: TrainConfig, mesh: Mesh) -> None:
    """Prints held-out loss and accuracy of the checkpoint that `--resume` means.

    Raises:
        DataError, CheckpointError: the message names the file.
    """
    reader = resume.choose(config.run, mesh, functools.partial(say, mesh))
    if reader is None:
        where = f"--output_dir={config.run.output_dir}"
        raise CheckpointError(f"{where}: no checkpoint to evaluate; train first, or name one with --resume")
    continuing.check_model(config, reader.manifest.run, reader.path)
    model = make_model(config, mesh)
    load_weights(model.named_variables(), model.slices, mesh.tensor_rank, reader)
    result = HeldOut(config, model, mesh, wants_jit(config))()
    lines = {
        "checkpoint": f"{reader.path} (step {reader.manifest.step})",
        "held-out examples": f"{result.examples}",
        "masked-LM loss": f"{result.mlm_loss:.4f} nats (perplexity {math.exp(result.mlm_loss):.2f})",
        "unigram entropy": f"{result.unigram_nats:.4f} nats, of the same text",
        "learned from context": f"{result.unigram_nats - result.mlm_loss:.4f} nats",
        "masked-LM accuracy": f"{result.mlm_accuracy:.4f}",
        "next-sentence accuracy": f"{result.nsp_accuracy:.4f}",
    }
    say(mesh, "\n".join(f"{name:24}{value}" for name, value in lines.items()))


def has_held_out(data: DataConfig) -> bool:
    """Whether there is anything to evaluate on; training goes without if there is not."""
    if data.data_dir:
        return read_manifest(data.data_dir).examples("eval") > 0
    return data.synthetic_data or data.eval_files is not None


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one; never if `every` is 0."""
    return every > 0 and step % every == 0
