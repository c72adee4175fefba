"""Checkpoints of this project: of a run, with any layout of ranks, and of weights alone, which a conversion writes."""

import dataclasses
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tftrain.architecture.describe import describe
from tftrain.checkpoint import folder, manifest, save, scores, shard
from tftrain.checkpoint.manifest import CheckpointManifest
from tftrain.checkpoint.placement import Placement
from tftrain.checkpoint.reader import Reader
from tftrain.checkpoint.tensor_slice import AVERAGE, MASTER, TensorSlice
from tftrain.config.data import DataConfig
from tftrain.config.fields import field_problems, without_secrets
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.data.manifest import read_manifest
from tftrain.data.mirror import local_folder
from tftrain.files import durable, names
from tftrain.files.addresses import Cache, is_address
from tftrain.files.errors import DataError, FormatError, MissingModelError
from tftrain.formats.weights import Weights
from tftrain.host.environment import versions
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer

OTHERS_EVALUATED = "these are the trained weights, and the run evaluated their average, which --weights=averaged takes"
NO_AVERAGE = "it has no averaged weights; expected trained, or a run with --ema_decay"
TOKENIZER_FOLDER = "tokenizer"  # in the output folder of a run


class OwnWeights(Weights):
    """The master weights of a checkpoint, or their moving average."""

    def __init__(self, path: Path, averaged: bool = False):
        """Opens a checkpoint, see `find`.

        Raises:
            CheckpointError: there is none, or it is damaged; or it has no average.
            FormatError: it does not say what model it holds, or holds other tensors than that.
        """
        self.notes = tuple(filter(None, [folder.links(path)]))
        path = find(path)
        self._reader = Reader(path)
        run, self.path = self._reader.manifest.run, str(path)
        self.model, self.tokenizer = _model(run.get("config"), self.path), _tokenizer(path)
        if self.model.is_fine_tuned:
            self.fine_tuning, self.max_seq_length = _fine_tuning(run["config"], self.path)
        evaluation = run["config"].get("evaluation")
        if isinstance(evaluation, dict) and evaluation.get("weights") == "averaged" and not averaged:
            self.notes = (OTHERS_EVALUATED, *self.notes)
        every = {each.name: each.shape for each in describe(self.model).variables()}
        masters = ((name.partition("/"), each[1]) for name, each in self._reader.tensors.items())
        self._kind = AVERAGE if averaged else MASTER
        weights = {name: shape for (kind, _, name), shape in masters if kind == self._kind}
        if averaged and not weights:
            raise FormatError(f"{path}: --weights=averaged: {NO_AVERAGE}")
        for name, shape in weights.items():
            if every.get(name) != shape:
                raise FormatError(f"{path}: {name} is {list(shape)}; its own configuration has another model")
        self.shapes = {name: shape for name, shape in every.items() if name in weights}

    def read(self, name: str) -> np.ndarray:
        """Returns a variable, fp32; see `Weights.read`."""
        return self._reader.read(TensorSlice.block(f"{self._kind}/{name}", self.shapes[name], "F32"))


class AveragedWeights(OwnWeights):
    """The mean of the master weights of a run's newest checkpoints (Izmailov et al., arXiv 1803.05407)."""

    def __init__(self, output_dir: Path, count: int, averaged: bool = False):
        """Opens `count` checkpoints of a run; raises what `OwnWeights` does, and FormatError if there are fewer."""
        paths = folder.find(output_dir)[-count:]
        if len(paths) < count:
            raise FormatError(f"{output_dir}: it has {len(paths)} checkpoints; expected {count} (--average_last)")
        super().__init__(paths[-1], averaged)
        self._others = [OwnWeights(path, averaged) for path in paths[:-1]]
        self.notes = (f"the mean of the checkpoints {', '.join(path.name for path in paths)}", *self.notes)
        for other in self._others:
            if (other.model, other.shapes) != (self.model, self.shapes):
                raise FormatError(f"{other.path}: another model than that of {self.path}, so they have no mean")

    def read(self, name: str) -> np.ndarray:
        """Returns the mean of a variable, computed in fp64, as fp32."""
        total = super().read(name).astype(np.float64)
        for other in self._others:
            total += other.read(name)
        return (total / (1 + len(self._others))).astype(np.float32)


read = OwnWeights  # as other formats call it


def read_model(path: Path) -> tuple[ModelConfig, Tokenizer | None]:
    """Returns the model and the tokenizer of a checkpoint."""
    path = find(path)
    return _model(manifest.read(path).run.get("config"), str(path)), _tokenizer(path)


def find(path: Path) -> Path:
    """Returns the folder of a checkpoint, given that or the output folder of a run: its best one by score, or newest.

    Raises:
        FormatError: there is no checkpoint.
    """
    if (path / manifest.NAME).is_file():
        return path
    if checkpoints := [scores.checkpoint(path)] if scores.checkpoint(path) else folder.find(path):
        return _inside(path, checkpoints[-1])
    expected = "expected the folder of one, or the --output_dir of a run that has one"
    raise MissingModelError(f"{path}: no checkpoint; {expected}")


def _inside(folder: Path, path: Path) -> Path:
    return names.inside(folder, path.relative_to(folder).as_posix(), FormatError)


def _model(config: Any, path: str) -> ModelConfig:
    values = config.get("model") if isinstance(config, dict) else None
    types = typing.get_type_hints(ModelConfig)
    try:
        model = ModelConfig(**{name: msgspec.convert(values[name], types[name]) for name in values if name in types})
    except (AttributeError, msgspec.ValidationError) as error:
        raise FormatError(f"{path}: its manifest does not say what model it holds") from error
    if not model.vocab_size:
        raise FormatError(f"{path}: its manifest does not say vocab_size")
    _check(model, path)
    return model


def _check(section: Any, path: str) -> None:
    """Raises a FormatError if a flag in a manifest is one that no command line may give."""
    if problems := field_problems(section):
        raise FormatError(f"{path}: its manifest has a flag that is refused: {problems[0]}")


def _fine_tuning(config: dict, path: str) -> tuple[FineTuningConfig | None, int | None]:
    if "fine_tuning" not in config:
        return None, None
    try:
        settings = msgspec.convert(config["fine_tuning"], FineTuningConfig)
        is_tuned = config["model"].get("task", "pretraining") != "pretraining"
        mix = msgspec.convert(config["data"].get("mix"), str | None) if is_tuned else None  # names the training files
        data = DataConfig(max_seq_length=msgspec.convert(config["data"]["max_seq_length"], int) or None)
        for section in (settings, data):
            _check(section, path)
        return dataclasses.replace(settings, train_file=settings.train_file or mix), data.max_seq_length
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise FormatError(f"{path}: its manifest does not say how the model was fine-tuned") from error


def _tokenizer(path: Path) -> Tokenizer | None:
    """Returns the tokenizer beside the weights, or else that of the run; no other folder that its manifest names."""
    return next(filter(None, map(tokenizer_files.read, tokenizer_folders(path))), None)


def tokenizer_folders(path: Path) -> list[Path]:
    """Returns the folders in which the tokenizer of a checkpoint, or of a run, is looked for."""
    path = find(path)
    run = path.parent.parent
    return [path, _inside(run, run / TOKENIZER_FOLDER)]


def tokenizer_of(path: str) -> Tokenizer | None:
    """Returns the tokenizer of a folder with a tokenizer's files or prepared data; None if it has neither.

    An address is one of prepared data, of which a copy may be in the cache.

    Raises:
        FormatError: a file is damaged.
    """
    if not is_address(path) and not Path(path, manifest.NAME).is_file():
        return tokenizer_files.read(Path(path))
    try:
        return read_manifest(local_folder(path, Cache())).read_tokenizer()
    except DataError as error:
        raise FormatError(f"{path}: {error}") from error


def take_tokenizer(weights: Weights, folder: str | None, shown: str) -> None:
    """Gives weights the tokenizer of the folder that `--tokenizer_dir` names, if it does.

    Raises:
        FormatError: there is none, or it is damaged or of a larger model; `shown` is the flag that names the weights.
    """
    if folder:
        weights.tokenizer = tokenizer_of(folder)
        if weights.tokenizer is None:
            raise FormatError(f"--tokenizer_dir={folder}: no vocab.txt, tokenizer.json or prepared data")
    if not weights.tokenizer:
        return
    tokens, rows = len(weights.tokenizer.vocabulary), weights.model.vocab_size
    sizes, remedy = f"the tokenizer has {tokens} tokens, the model {rows}", "name its own with --tokenizer_dir"
    if tokens > rows:
        raise FormatError(f"{shown}: {sizes}; {remedy}")
    if 2 * tokens < rows:
        weights.notes = (*weights.notes, f"{shown}: {sizes}, so it may be that of another model; {remedy}")


def write(path: Path, weights: Weights) -> Iterable[str]:
    """Writes the weights as a checkpoint of step 0 without an optimizer; returns the names of all variables."""
    pieces = [TensorSlice.block(f"{MASTER}/{name}", shape, "F32") for name, shape in weights.shapes.items()]
    files = {}
    for number, group in enumerate(shard.pack(pieces)):
        values = (weights.read(piece.name.partition("/")[2]).reshape(-1) for piece in group)
        name = save.file_name(0, number)
        files[name] = shard.write(path / name, group, values)
    config = {"model": dataclasses.asdict(weights.model)}
    if weights.fine_tuning:  # What `_fine_tuning` reads.
        sizes = {"max_seq_length": weights.max_seq_length or 0}
        config |= {"fine_tuning": dataclasses.asdict(without_secrets(weights.fine_tuning)), "data": sizes}
    run = {"config": config, "packages": versions()}
    placement = Placement.of(files)
    durable.write(path / manifest.NAME, manifest.encode(CheckpointManifest(0, placement, run)))
    return weights.shapes
