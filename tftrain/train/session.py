"""What lives as long as a run: model, optimizer and counters, and their way into and out of checkpoints."""

import dataclasses
import json
import platform
from importlib import metadata
from pathlib import Path

import numpy as np
import tensorflow as tf

from tftrain.config import TrainConfig
from tftrain.model.bert import BertPretrainer
from tftrain.model.checkpointing import Checkpointing
from tftrain.optim.loss_scale import make_loss_scale
from tftrain.optim.optimizer import Optimizer
from tftrain.optim.schedule import run_length
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.tensor import whole_shapes
from tftrain.train import checkpoint, devices
from tftrain.train.precision import DTYPES
from tftrain.train.state import Progress

STEP = "optimizer/step"
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

    def counters(self) -> dict[str, tf.Variable]:
        """Returns the state that is the same on every rank, by global name: all but master weights and moments."""
        return {STEP: self.optimizer.step, **self.loss_scale.state(), **self.progress.state()}

    def collect(self) -> dict[str, np.ndarray]:
        """Returns all that a checkpoint holds, whole tensors by global name, on the chief; every rank must call it."""
        counters = {name: np.asarray(variable) for name, variable in self.counters().items()}
        tensors = self.optimizer.state.collect()
        kept = {name: value for name, value in tensors if self.mesh.is_chief}
        return {**counters, **kept}

    def restore(self) -> Path | None:
        """Gives every rank the state of the checkpoint that `--resume` means, or the chief's initial state.

        Returns:
            The checkpoint on the chief, else None.

        Raises:
            CheckpointError: it is missing or damaged, or holds another model or optimizer.
        """
        path, tensors = None, {}
        if self.mesh.is_chief:
            path = checkpoint.locate(self.config.run.resume, self.config.run.output_dir)
        if path:
            tensors, manifest = checkpoint.load(path)
            check_same_mathematics(self.config, manifest, path)
            self._check_shapes(tensors, path)
        if collectives.gather_numbers(self.mesh.world, float(path is not None), "resumes")[0]:
            self._take(tensors)
        if self.mesh.is_chief:
            aside = checkpoint.set_aside(self.config.run.output_dir, int(self.progress.step))
            if aside:
                say(self.mesh, f"checkpoints of later steps were moved to {aside}")
        return path

    def _check_shapes(self, tensors: dict[str, np.ndarray], path: Path) -> None:
        """Refuses a checkpoint that holds other tensors than this run's state."""
        shapes = self.optimizer.state.shapes()
        shapes |= {name: variable.shape.as_list() for name, variable in self.counters().items()}
        # A loss scale comes and goes with fp16, and finds its value again by itself.
        expected = {name: shape for name, shape in shapes.items() if name in tensors or not _is_loss_scale(name)}
        found = {name: tensors[name] for name in tensors if name in shapes or not _is_loss_scale(name)}
        check_tensors(expected, found, path)

    def _take(self, tensors: dict[str, np.ndarray]) -> None:
        """Gives every rank its part of the tensors that the chief has read."""
        counters, state = self.counters(), self.optimizer.state
        for name, variable in counters.items():
            if name in tensors:
                variable.assign(tf.cast(tensors[name], variable.dtype))
        collectives.broadcast_variables(self.mesh.world, counters)
        for name, shape in state.shapes().items():
            whole = tensors.pop(name) if self.mesh.is_chief else np.zeros(shape, np.float32)
            state.load(name, collectives.broadcast(self.mesh.world, whole.astype(np.float32), f"restore.{name}"))
        state.publish()

    def save(self) -> None:
        """Writes a checkpoint of this moment: the chief does, with what every rank has."""
        tensors = self.collect()
        # A rank that has given all it has may be the first to exit, and Horovod would end with it.
        collectives.gather_numbers(self.mesh.world, 0.0, "collected")
        if not self.mesh.is_chief:
            return
        about = {"config": dataclasses.asdict(self.config), "packages": versions()}
        path = checkpoint.save(
            self.config.run.output_dir, int(self.progress.step), tensors, about, self.config.run.keep_last
        )
        say(self.mesh, f"checkpoint {path}")


def check_same_mathematics(config: TrainConfig, manifest: dict, path: Path) -> None:
    """Refuses to go on from a checkpoint with another model, update rule or seed.

    Args:
        config: of this run.
        manifest: of the checkpoint; its configuration is that of the run that wrote it.
        path: the checkpoint, for the message.

    Raises:
        CheckpointError: it lists every flag that differs.
    """
    saved, now = manifest.get("config", {}), dataclasses.asdict(config)
    names = [("model", name) for name in now["model"] if not name.endswith("_impl")]
    names += [("optimizer", "optimizer"), ("run", "seed")]
    differing = []
    for section, name in names:
        old, new = saved.get(section, {}).get(name), now[section][name]
        # The fused update rules are the plain ones computed otherwise.
        same = str(old).removeprefix("fused_") == str(new).removeprefix("fused_")
        if not same:
            differing.append(f"--{name}={new}, saved with {old}")
    if differing:
        raise checkpoint.CheckpointError(f"{path}: not a checkpoint of this configuration: {'; '.join(differing)}")


def _is_loss_scale(name: str) -> bool:
    return name.startswith("loss_scale/")


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


def check_tensors(shapes: dict[str, list[int]], tensors: dict[str, np.ndarray], path: Path, whole: bool = True) -> None:
    """Refuses a checkpoint that does not hold what is asked of it.

    Args:
        shapes: what is asked, by global name.
        tensors: the checkpoint's.
        path: the checkpoint, for the message.
        whole: whether a tensor that nobody asks for is an error.

    Raises:
        CheckpointError: names or shapes do not match; the message lists the first differences.
    """
    wrong = [f"{name} is missing" for name in shapes if name not in tensors]
    wrong += [f"{name} is unknown here" for name in tensors if whole and name not in shapes]
    wrong += [
        f"{name} has shape {list(tensors[name].shape)}, expected {shape}"
        for name, shape in shapes.items()
        if name in tensors and list(tensors[name].shape) != shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise checkpoint.CheckpointError(
            f"{path}: not a checkpoint of this configuration: {'; '.join(wrong[:5])}{more}"
        )


def load_weights(model: BertPretrainer, tensors: dict[str, np.ndarray], mesh: Mesh, path: Path | None) -> None:
    """Gives every rank its part of the weights that the chief has read, rounded to the model's dtype.

    Args:
        model: this rank's part.
        tensors: the checkpoint's, on the chief.
        mesh: the ranks; all must call it.
        path: the checkpoint, on the chief.

    Raises:
        CheckpointError: the checkpoint holds other weights.
    """
    named, slices = model.named_variables(), model.slices
    shapes = whole_shapes(named, slices)
    if mesh.is_chief:
        check_tensors({f"master/{name}": shape for name, shape in shapes.items()}, tensors, path, whole=False)
    for name, variable in named.items():
        whole = tensors[f"master/{name}"] if mesh.is_chief else np.zeros(shapes[name], np.float32)
        whole = collectives.broadcast(mesh.world, whole.astype(np.float32), f"weights.{name}")
        value = slices[name].take(whole, mesh.tensor.rank) if name in slices else whole
        variable.assign(tf.cast(value, variable.dtype))


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
