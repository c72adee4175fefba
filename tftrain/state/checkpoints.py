"""The checkpoints of a run: restores the one that it starts from, and saves new ones with a description of the run."""

import dataclasses
import logging
import threading
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from tftrain.checkpoint import folder, scores
from tftrain.checkpoint.errors import AgreedCheckpointError
from tftrain.checkpoint.reader import Reader
from tftrain.checkpoint.tensor_slice import AVERAGE
from tftrain.config.fields import changed, without_secrets
from tftrain.data.left_out import LeftOut
from tftrain.host.environment import versions
from tftrain.host.text import listed
from tftrain.inputs.inputs import Inputs
from tftrain.ops.dropout import PROBABILITY_BITS
from tftrain.optim.schedule import learning_rate, run_length
from tftrain.state import resume, resume_compatibility
from tftrain.state.memory_checkpoints import MemoryCheckpoints
from tftrain.state.run_state import SUMS, Run
from tftrain.state.saves import Saves
from tftrain.state.spikes import SpikeStatistics
from tftrain.state.uploads import Uploads

logger = logging.getLogger(__name__)

OF_SCHEDULE = ("schedule", "warmup_steps", "decay_steps", "learning_rate", "end_learning_rate", "decay_power")


class Checkpoints:
    """The checkpoints of one run, in its output folder; the `with` statement of `saves` finishes the one under way."""

    def __init__(self, run: Run, inputs: Inputs, uploads: Uploads | None = None):
        self._inputs = inputs
        config, seconds = run.config, run.config.limits.save_timeout_seconds
        self._run, self._uploads = run, uploads or Uploads(config.run, seconds, run.mesh)
        self.saves = Saves(config.checkpoint, config.run, seconds, run.mesh, self._uploads.request)
        self.in_memory = MemoryCheckpoints(config.checkpoint.memory_checkpoint_steps, config.run.folder or "", run.mesh)

    @property
    def copy_bytes(self) -> int:
        """Bytes of host memory for copies of the state, on this rank."""
        return self.saves.copy_bytes + self.in_memory.copy_bytes

    def restore(self) -> Path | None:
        """Gives every rank its part of the checkpoint that `--resume` means; every rank must call it.

        Returns:
            The checkpoint; None: the state is the initial one.

        Raises:
            CheckpointError: it is missing or damaged, or holds another model or optimizer, or the ranks do not see the
                same folder; on all ranks alike. The state may be anything then.
        """
        run, output_dir = self._run, self._run.config.run.folder
        resume.require_shared(output_dir, run.mesh)
        config, reader = run.config, self._search.choose(self.in_memory.among)
        if reader:
            changes = resume_compatibility.changes(run.config, self._inputs.identity, reader.manifest.run, reader.path)
            self._check_tensors(reader)
            self._load(reader)
            changes += resume_compatibility.attention_changes(
                config.model, self._attention, reader.manifest.run.get("attention")
            )
            for line in changes + self._learning_rate_changes(reader.manifest.run.get("schedule")):
                logger.info(line)
        if run.mesh.is_chief:
            folder.sweep(output_dir)
            is_other = run.config.checkpoint.resume == "none"
            is_other |= reader is not None and not folder.holds(output_dir, reader.path)
            step = -1 if is_other else int(run.progress.step)
            if aside := folder.set_aside(output_dir, step):
                what = "what another run left here was" if is_other else "checkpoints of later steps were"
                logger.info(f"{what} moved to {aside}")
            self.saves.keep_step = scores.best_step(output_dir) if reader else None
            self._uploads.begin(step, self.saves.superseded)
        self.in_memory.remove()
        return reader and reader.path

    def go_back(self, step: int, margin: int) -> Path:
        """Gives every rank its part of the checkpoint that `Search.before` chooses, and returns it; as `restore` does.

        Checkpoints of later steps are set aside.
        """
        run = self._run
        self.saves.settle()
        reader = self._search.before(step, margin)
        self._load(reader)
        if self.in_memory.is_on:
            self.in_memory.forget()
        if run.mesh.is_chief:
            folder.set_aside(run.config.run.folder, int(run.progress.step))
            self._uploads.go_back(int(run.progress.step))
        return reader.path

    def _load(self, reader: Reader) -> None:
        """Gives the run what a checkpoint holds; older checkpoints lack windows left out and statistics of spikes."""
        run, saved = self._run, reader.manifest.run
        run.load(reader)
        try:
            windows = saved.get("progress", {}).get("left_out", ())
            run.left_out = LeftOut(msgspec.convert(windows, tuple[tuple[int, int], ...]))
            run.spikes.statistics = msgspec.convert(saved.get("spikes", SpikeStatistics()), SpikeStatistics)
        except (AttributeError, msgspec.ValidationError) as error:
            raise AgreedCheckpointError(f"{reader.path}: its manifest has a damaged progress: {error}") from error

    def prepare(self) -> threading.Thread:
        """Lets memory for the first save be prepared in the background; returns the thread."""
        self.in_memory.begin(self._run.pieces_to_save())
        return self.saves.prepare(self._run.pieces_to_save())

    def save(self, last: bool = False, is_good: bool = True) -> None:
        """Starts to save this moment; every rank must call it.

        Args:
            last: nothing is trained before `saves.finish`.
            is_good: whether the last step was finite. Otherwise the weights may be spoiled although they are finite:
                the checkpoint replaces no other, and a run goes on from it only if `--resume` names it.

        Raises:
            CheckpointError: too many saves in a row have failed, on all ranks alike.
            NotFiniteError: the state is not finite; on all ranks alike. Nothing is written.
        """
        run = self._run
        self.saves.start(int(run.progress.step), self.manifest_metadata(), run.tensors_to_save, last, is_good)

    def save_in_memory(self) -> None:
        """Copies this moment into the memory of the hosts; every rank must call it."""
        self.in_memory.save(int(self._run.progress.step), self.manifest_metadata, self._run.tensors_to_save)

    def manifest_metadata(self) -> dict[str, Any]:
        """Returns what a manifest says of this run, in JSON's types."""
        run, config = self._run, self._run.whole
        counters = ("consumed_samples", "skipped_steps", "nan_steps")
        return {
            "progress": {
                **{name: int(getattr(run.progress, name)) for name in counters},
                "left_out": [list(window) for window in run.left_out.windows],
            },
            "spikes": msgspec.to_builtins(run.spikes.statistics),
            "seed": config.run.seed,
            "loss_scale": float(run.loss_scale.value),
            "schedule": {
                "updates": int(run.optimizer.step),
                "max_steps": config.run.max_steps,
                **{name: getattr(config.optimizer, name) for name in OF_SCHEDULE},
                "batch_rampup": config.batch.batch_rampup,
            },
            "layout": {
                "ranks": run.mesh.size,
                "tensor_parallel_size": run.mesh.tensor_parallel_size,
                "state_split": config.parallel.state_split_strategy if run.optimizer.state.split else None,
            },
            "data": self._inputs.identity,
            "attention": self._attention,
            "config": dataclasses.asdict(without_secrets(config)),
            "packages": versions(),
        }

    @property
    def _search(self) -> resume.Search:
        run = self._run
        return resume.Search(run.config.checkpoint, run.config.run, run.mesh, run.restore_buffers)

    @property
    def _attention(self) -> dict[str, Any]:
        return {"core": self._run.task.attention_core, "dropout_bits": PROBABILITY_BITS}

    def _learning_rate_changes(self, saved: Any) -> list[str]:
        """Returns a line on the learning rate if this run is of another length than the one that saved the state.

        `saved` is the schedule in the manifest, see `manifest_metadata`: unvalidated JSON.
        """
        config, done = self._run.config, int(self._run.optimizer.step)
        max_steps = config.run.max_steps
        now = {"max_steps": max_steps, **{name: getattr(config.optimizer, name) for name in OF_SCHEDULE}}
        lengths = ("max_steps", "warmup_steps", "decay_steps")
        if not isinstance(saved, dict) or all(saved.get(name) == now[name] for name in lengths):
            return []
        try:
            length, older = saved["max_steps"], changed(config, {name: saved.get(name, now[name]) for name in now})
            schedules = [(each.optimizer, run_length(each.run.max_steps, each.timeline)) for each in (older, config)]
            steps = tf.constant([max(done - 1, 0), done], tf.int64)
            before, after = (float(learning_rate(*each, step)) for each, step in zip(schedules, steps, strict=True))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return []
        change = "stretched" if max_steps > length else "shortened"
        what = f"{change} to {max_steps} steps" if max_steps != length else "of another warm-up or decay"
        return [f"learning rate {before:.1e} at step {done} -> {after:.1e}: the schedule is {what}"]

    def _check_tensors(self, reader: Reader) -> None:
        """Refuses a checkpoint that holds other tensors than this run's state."""
        expected = self._run.tensor_shapes()
        stored = {name: list(shape) for name, (_, shape) in reader.tensors.items()}
        for name in expected.keys() ^ stored.keys():
            # A new loss scale soon reaches its value. An average may begin or end, and a mixture have other sources.
            if name.startswith(("loss_scale/", f"{AVERAGE}/", SUMS)):
                expected.pop(name, None), stored.pop(name, None)
        differing = [
            f"{name} is {stored.get(name, 'missing')}, expected {expected.get(name, 'no such tensor')}"
            for name in {**expected, **stored}
            if expected.get(name) != stored.get(name)
        ]
        if differing:
            raise AgreedCheckpointError(f"{reader.path}: not this model's: {listed(differing, 3, '; ')}")
