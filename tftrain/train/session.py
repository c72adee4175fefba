"""What lives as long as a run: model, optimizer and counters, and their way into and out of checkpoints."""

import dataclasses
import functools
import json
import platform
import threading
from collections import ChainMap
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tftrain.checkpoint import folder, memory
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.piece import Piece
from tftrain.checkpoint.reader import Reader
from tftrain.config import TrainConfig
from tftrain.data.identity import identity
from tftrain.model.bert import BertPretrainer
from tftrain.model.checkpointing import Checkpointing
from tftrain.optim.loss_scale import make_loss_scale
from tftrain.optim.optimizer import Optimizer
from tftrain.optim.schedule import run_length
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.train import continuing, devices, resume
from tftrain.train.precision import DTYPES
from tftrain.train.saves import Saves
from tftrain.train.state import Progress

STEP = "optimizer/step"
FORMATS = {tf.float32: "F32", tf.float64: "F64", tf.int64: "I64"}
PACKAGES = ("tensorflow", "tf-keras", "tensorflow-text", "horovod", "numpy", "safetensors")


class Run:
    """Everything that lives as long as a training run: model, optimizer, counters, and how they are saved."""

    def __init__(self, config: TrainConfig, mesh: Mesh):
        """Builds the model with its initial weights and an optimizer over them; `config` is resolved and filled in."""
        self.config, self.mesh = config, mesh
        self.jit = wants_jit(config)
        self.model = make_model(config, mesh)
        named, parallel = self.model.named_variables(), config.parallel
        # The chief's, should another host's draws differ in a bit; slices have a first rank each.
        collectives.broadcast_variables(mesh.world, {n: v for n, v in named.items() if n not in self.model.slices})
        collectives.broadcast_variables(mesh.data, {n: v for n, v in named.items() if n in self.model.slices})
        self.optimizer = Optimizer(
            config.optimizer,
            run_length(config),
            list(named),
            list(named.values()),
            mesh,
            parallel.state_split_strategy if parallel.splits_state and mesh.data.size > 1 else None,
            self.model.slices,
        )
        self.loss_scale = make_loss_scale(config)
        self.progress = Progress()
        self.saves = Saves(config.run, mesh, functools.partial(say, mesh))

    def counters(self) -> dict[str, tf.Variable]:
        """Returns the state that is the same on every rank, by global name: all but master weights and moments."""
        return {STEP: self.optimizer.step, **self.loss_scale.state(), **self.progress.state()}

    def restore(self) -> Path | None:
        """Gives every rank its part of the checkpoint that `--resume` means; every rank must call it.

        Returns:
            The checkpoint; None: the state is the initial one.

        Raises:
            CheckpointError: it is missing or damaged, or holds another model or optimizer, or the ranks do not see the
                same folder; on all ranks alike. The state may be anything then.
        """
        settings = self.config.run
        resume.require_shared(settings.output_dir, self.mesh)
        reader = resume.choose(settings, self.mesh, functools.partial(say, self.mesh), self.room)
        if reader:
            told = continuing.changes(self.config, self.data, reader.manifest.run, reader.path)
            self._check_tensors(reader)
            self.load(reader)
            for line in told:
                say(self.mesh, line)
        if self.mesh.is_chief:
            folder.sweep(settings.output_dir)
            aside = folder.set_aside(settings.output_dir, int(self.progress.step))
            if aside:
                say(self.mesh, f"checkpoints of later steps were moved to {aside}")
        return reader and reader.path

    def _check_tensors(self, reader: Reader) -> None:
        """Refuses a checkpoint that holds other tensors than this run's state."""
        expected = self.optimizer.state.shapes()
        expected |= {name: variable.shape.as_list() for name, variable in self.counters().items()}
        found = {name: list(shape) for name, (_, shape) in reader.tensors.items()}
        for name in expected.keys() ^ found.keys():
            if name.startswith("loss_scale/"):  # It comes and goes with fp16, and finds its value again by itself.
                expected.pop(name, None), found.pop(name, None)
        differing = [
            f"{name} is {found.get(name, 'missing')}, expected {expected.get(name, 'no such tensor')}"
            for name in {**expected, **found}
            if expected.get(name) != found.get(name)
        ]
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise CheckpointError(f"{reader.path}: not this model's: {'; '.join(differing[:3])}{more}")

    def load(self, reader: Reader) -> None:
        """Takes this rank's part of a checkpoint that holds what it needs."""
        for piece, variable in self._counted():
            if piece.name in reader.tensors:
                variable.assign(reader.read(piece))
        self.optimizer.state.load(reader)

    def room(self) -> Mapping[Piece, np.ndarray]:
        """Returns what `load` reads, and memory for it, flat: of the variables themselves, where that is the host's."""
        return ChainMap(memory.arrays(piece for piece, _ in self._counted()), self.optimizer.state.room())

    def prepare_saves(self) -> threading.Thread:
        """Lets memory for the first save be prepared in the background; returns the thread."""
        counted = [piece for piece, _ in self._counted()] if self.mesh.is_chief else []
        return self.saves.prepare([*counted, *self.optimizer.state.given()])

    def _counted(self) -> Iterator[tuple[Piece, tf.Variable]]:
        for name, variable in self.counters().items():
            yield Piece.block(name, variable.shape.as_list(), FORMATS[variable.dtype]), variable

    def owned(self) -> Iterator[tuple[Piece, np.ndarray]]:
        """Yields what this rank gives to a checkpoint, see `OptimizerState.owned`; the chief gives the counters."""
        if self.mesh.is_chief:
            for piece, variable in self._counted():
                yield piece, np.asarray(variable).reshape(-1)
        yield from self.optimizer.state.owned()

    def about(self) -> dict[str, Any]:
        """Returns what a manifest says of this run, in JSON's types."""
        progress, schedule = self.progress, self.config.optimizer
        return {
            "progress": {
                name: int(getattr(progress, name)) for name in ("consumed_samples", "skipped_steps", "nan_steps")
            },
            "seed": self.config.run.seed,
            "loss_scale": float(self.loss_scale.value),
            "schedule": {
                "updates": int(self.optimizer.step),
                "max_steps": self.config.run.max_steps,
                "warmup_steps": schedule.warmup_steps,
                "learning_rate": schedule.learning_rate,
                "end_learning_rate": schedule.end_learning_rate,
                "decay_power": schedule.decay_power,
                "batch_rampup": self.config.batch.batch_rampup,
            },
            "layout": {
                "ranks": self.mesh.size,
                "tensor_parallel_size": self.mesh.tensor_parallel_size,
                "state_split": self.config.parallel.state_split_strategy if self.optimizer.state.split else None,
            },
            "data": self.data,
            "config": dataclasses.asdict(self.config),
            "packages": versions(),
        }

    @functools.cached_property
    def data(self) -> dict[str, str]:
        """What tells the data from other data."""
        return identity(self.config.data)

    def save(self, last: bool = False) -> None:
        """Starts to save this moment; every rank must call it.

        Args:
            last: nothing is trained before `finish`.

        Raises:
            CheckpointError: too many saves in a row have failed, on all ranks alike.
        """
        self.saves.start(int(self.progress.step), self.about(), self.owned, last)

    def finish(self) -> None:
        """Waits until the last checkpoint is there; every rank must call it.

        Raises:
            CheckpointError: it could not be written, on all ranks alike.
        """
        self.saves.finish()


def make_model(config: TrainConfig, mesh: Mesh) -> BertPretrainer:
    """Builds this rank's part of the model of a filled-in configuration, with its initial weights."""
    return BertPretrainer(
        config.model,
        config.model.vocab_size,
        DTYPES[config.compute.precision],
        config.run.seed,
        Checkpointing(config.compute.activation_checkpointing, wants_jit(config)),
        mesh.tensor,
    )


def wants_jit(config: TrainConfig) -> bool:
    """Whether the step is compiled by XLA: as the flag says, by default on a GPU and if no collective is in the way."""
    if config.compute.jit_compile == "auto":
        return bool(tf.config.get_visible_devices("GPU")) and config.parallel.tensor_parallel_size == 1
    return config.compute.jit_compile == "true"


def versions() -> dict[str, str | None]:
    """Returns the versions of the packages that decide about a run's numbers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def write_config(config: TrainConfig, mesh: Mesh) -> None:
    """Writes OUTPUT_DIR/config.json: the whole resolved configuration, package versions, ranks, host and device."""
    about = {
        "config": dataclasses.asdict(config),
        "xla": wants_jit(config),
        "packages": versions(),
        "ranks": mesh.size,
        "host": platform.node(),
        "device": devices.device_name(),
    }
    path = Path(config.run.output_dir) / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n")


def say(mesh: Mesh, message: str) -> None:
    """Prints a line from the chief alone."""
    if mesh.is_chief:
        print(message, flush=True)
