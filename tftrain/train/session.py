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
from tftrain.train import checkpoint, devices
from tftrain.train.state import Progress

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
LOSS_SCALE = "loss_scale/"
PACKAGES = ("tensorflow", "tf-keras", "tensorflow-text", "horovod", "numpy", "safetensors")


class Run:
    """Everything that lives as long as a training run: model, optimizer, counters, and how they are saved."""

    def __init__(self, config: TrainConfig, mesh: Mesh):
        """Builds the model with its initial weights and an optimizer over them; `config` is resolved and filled in."""
        self.config, self.mesh = config, mesh
        self.jit = wants_jit(config)
        self.model = make_model(config)
        named = self.model.named_variables()
        self.optimizer = Optimizer(config.optimizer, run_length(config), list(named), list(named.values()))
        self.loss_scale = make_loss_scale(config.compute)
        self.progress = Progress()

    def state(self) -> dict[str, tf.Variable]:
        """Returns all that a checkpoint holds, by global name."""
        return {**self.optimizer.state(), **self.loss_scale.state(), **self.progress.state()}

    def restore(self) -> Path | None:
        """Gives every rank the state of the checkpoint that `--resume` means, or the chief's initial state.

        Returns:
            The checkpoint on the chief, else None.

        Raises:
            CheckpointError: it is missing or damaged, or holds another model or optimizer.
        """
        path, state = None, self.state()
        if self.mesh.is_chief:
            path = checkpoint.locate(self.config.run.resume, self.config.run.output_dir)
        if path:
            tensors, manifest = checkpoint.load(path)
            check_same_mathematics(self.config, manifest, path)
            # A loss scale comes and goes with fp16, and finds its value again by itself.
            assign(
                {name: state[name] for name in state if name in tensors or not name.startswith(LOSS_SCALE)},
                {name: tensors[name] for name in tensors if name in state or not name.startswith(LOSS_SCALE)},
                path,
            )
        if self.mesh.is_chief:
            aside = checkpoint.set_aside(self.config.run.output_dir, int(self.progress.step))
            if aside:
                say(self.mesh, f"checkpoints of later steps were moved to {aside}")
        collectives.broadcast_variables(self.mesh.world, state)
        self.optimizer.cast_masters()
        return path

    def save(self) -> None:
        """Writes a checkpoint of this moment; the chief does, since every rank holds the same."""
        if not self.mesh.is_chief:
            return
        tensors = {name: np.asarray(variable.numpy()) for name, variable in self.state().items()}
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


def make_model(config: TrainConfig) -> BertPretrainer:
    """Builds the model of a filled-in configuration, with its initial weights."""
    return BertPretrainer(
        config.model,
        config.model.vocab_size,
        DTYPES[config.compute.precision],
        config.run.seed,
        Checkpointing(config.compute.activation_checkpointing, wants_jit(config)),
    )


def wants_jit(config: TrainConfig) -> bool:
    """Whether the step is compiled by XLA: as the flag says, and by default on a GPU only."""
    if config.compute.jit_compile == "auto":
        return bool(tf.config.get_visible_devices("GPU"))
    return config.compute.jit_compile == "true"


def assign(variables: dict[str, tf.Variable], tensors: dict[str, np.ndarray], path: Path, whole: bool = True) -> None:
    """Writes a checkpoint's tensors into variables of the same names, converting to each variable's dtype.

    Args:
        variables: what is written to, by global name.
        tensors: the checkpoint's, by global name.
        path: the checkpoint, for the message.
        whole: whether a tensor that no variable takes is an error.

    Raises:
        CheckpointError: names or shapes do not match; the message lists the first differences.
    """
    wrong = [f"{name} is missing" for name in variables if name not in tensors]
    wrong += [f"{name} is unknown here" for name in tensors if whole and name not in variables]
    wrong += [
        f"{name} has shape {list(tensors[name].shape)}, expected {variable.shape.as_list()}"
        for name, variable in variables.items()
        if name in tensors and list(tensors[name].shape) != variable.shape.as_list()
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise checkpoint.CheckpointError(
            f"{path}: not a checkpoint of this configuration: {'; '.join(wrong[:5])}{more}"
        )
    for name, variable in variables.items():
        variable.assign(tf.cast(tensors[name], variable.dtype))


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
