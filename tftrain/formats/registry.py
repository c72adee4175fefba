"""The formats by name: what reads and what writes each of them. A format's libraries are loaded when it is used."""

import math
from importlib import import_module
from pathlib import Path

from tftrain.config.convert import Place
from tftrain.config.train import ModelConfig
from tftrain.formats.errors import FormatError
from tftrain.formats.tokenizer import Tokenizer
from tftrain.formats.weights import Weights

_MODULES = {
    "tftrain": "own",
    "hf": "hugging_face",
    "tf1": "tf1",
    "tf_models": "tf_models",
    "nvidia": "nvidia",
    "megatron": "megatron",
}
WITH_TASKS = ("tftrain", "hf")  # formats of fine-tuned models too


def open_weights(place: Place, allow_pickle: bool = False) -> Weights:
    """Opens the model at a place.

    Args:
        place: format and folder.
        allow_pickle: whether a pickle may be in the place of a safetensors file.

    Raises:
        FormatError, CheckpointError: it can't be read; the message names the file.
    """
    if place.format == "hf":
        return _module("hf").read(Path(place.path), allow_pickle)
    return _module(place.format).read(Path(place.path))


def model_of(place: Place) -> tuple[ModelConfig, Tokenizer | None]:
    """Returns the model and the tokenizer at a place. It reads no tensor and loads no TensorFlow.

    Raises:
        FormatError, CheckpointError: they can't be read; the message names the file.
    """
    return _module(place.format).read_model(Path(place.path))


def tokenizer_folders(place: Place) -> list[str]:
    """Returns the folders in which the tokenizer of a model is looked for, for messages."""
    return _module("tftrain").tokenizer_folders(Path(place.path)) if place.format == "tftrain" else [place.path]


def write_weights(
    place: Place, weights: Weights, architecture: str | None = None, max_shard_bytes: float = math.inf
) -> list[str]:
    """Writes a model into an empty folder.

    Args:
        place: format and folder.
        weights: of the model.
        architecture: a class of the format's library; None: its default.
        max_shard_bytes: most bytes of tensors in a file of hf.

    Returns:
        The names of the variables that the format has no place for, which are left out.

    Raises:
        FormatError: the format can't hold the model.
    """
    if weights.model.is_fine_tuned and place.format not in WITH_TASKS:
        raise FormatError(
            f"{weights.path}: --task={weights.model.task}: {place.format} has no fine-tuned models; expected --to with "
            f"{' or '.join(WITH_TASKS)}"
        )
    options = {"max_shard_bytes": max_shard_bytes} if place.format == "hf" else {}
    return _module(place.format).write(Path(place.path), weights, architecture, **options)


def _module(name: str):
    return import_module(f"tftrain.formats.{_MODULES[name]}")
