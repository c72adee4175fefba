"""The formats by name: what reads and what writes each of them. A format's libraries are loaded when it is used.

The module of a format has three functions. Each raises a FormatError that names the file or the flag.

- read: opens a model in a folder; refuses damaged files, and models that this project does not have.
- read_model: returns the model and the tokenizer in a folder. It reads no tensor and loads no TensorFlow.
- write: writes a model into an empty folder; refuses models that the format does not have. It returns the names of the
  variables that the format can store.
"""

import math
from importlib import import_module
from pathlib import Path

from tftrain.checkpoint import remote
from tftrain.config.convert import FORMATS, Place
from tftrain.config.model import ModelConfig
from tftrain.files.addresses import Cache, is_address
from tftrain.files.errors import FormatError, MissingModelError
from tftrain.formats.weights import Weights
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer

_MODULES = {"tftrain": "run_folder", "hf": "hugging_face"}  # those of other formats have their names
WITH_TASKS = ("tftrain", "hf")  # formats of fine-tuned models too
_WITH_CLASSES = ("hf", "tf_models", "nvidia")  # formats of libraries that have several classes for a model


def local(source: Place, shown: str, last: int = 1) -> Place:
    """Returns a place on this host: the one that is given, or a copy of what is at an address.

    Raises a FormatError that begins with `shown` if the address can't be read. For `last`, see `remote.local_copy`.
    """
    if not is_address(source.path):
        return source
    try:
        return source._replace(path=str(remote.local_copy(source.path, Cache(), last)))
    except OSError as error:
        expected = f"expected an address that can be read, of {FORMATS[source.format]}"
        raise MissingModelError(f"{shown}: {error.strerror}; {expected}") from error


def open_weights(source: Place, allow_pickle: bool = False, weights: str = "trained") -> Weights:
    """Opens the model at a place; of hf with `allow_pickle` also one without a safetensors file.

    `weights` is one of WEIGHTS; only tftrain has averaged ones. Raises a FormatError or a CheckpointError if the model
    can't be read; the message names the file.
    """
    options = {"allow_pickle": allow_pickle} if source.format == "hf" else {}
    options |= {"averaged": True} if weights == "averaged" else {}
    return _module(source.format).read(Path(source.path), **options)


def model_of(source: Place) -> tuple[ModelConfig, Tokenizer | None]:
    """Returns the model and the tokenizer at a place; raises FormatError or CheckpointError."""
    return _module(source.format).read_model(Path(source.path))


def tokenizer_folders(source: Place) -> list[Path]:
    """Returns the folders in which the tokenizer of a model is looked for, for messages."""
    path = Path(source.path)
    return _module("tftrain").tokenizer_folders(path) if source.format == "tftrain" else [path]


def write_weights(
    target: Place, weights: Weights, architecture: str | None = None, max_shard_bytes: float = math.inf
) -> list[str]:
    """Writes a model and its tokenizer into an empty folder.

    Args:
        architecture: a class of the format's library; None: the largest whose heads are all there.
        max_shard_bytes: most bytes of tensors in a file of hf.

    Returns:
        The names of the variables that the format has no place for, which are left out.

    Raises:
        FormatError: the format can't hold the model.
    """
    formats = WITH_TASKS[:1] if weights.model.is_custom else WITH_TASKS
    if weights.model.is_fine_tuned and target.format not in formats:
        raise FormatError(
            f"--to: {weights.path} is fine-tuned for {weights.model.task}, for which {target.format} has no models; "
            f"expected --to with {' or '.join(formats)}"
        )
    if architecture and target.format not in _WITH_CLASSES:
        raise FormatError(f"--architecture={architecture}: the format {target.format} has only one; remove this flag")
    options = {"architecture": architecture} if target.format in _WITH_CLASSES else {}
    options |= {"max_shard_bytes": max_shard_bytes} if target.format == "hf" else {}
    written = set(_module(target.format).write(Path(target.path), weights, **options))
    if weights.tokenizer:
        tokenizer, tokens = weights.tokenizer, weights.tokenizer.named_tokens
        if weights.model.is_causal and weights.model.is_fine_tuned and "pad_token" not in tokens:
            # Other libraries need one for texts of several lengths.
            tokenizer = tokenizer._replace(special=(*tokenizer.special, ("pad_token", tokens["eos_token"])))
        tokenizer_files.write(Path(target.path), tokenizer, weights.longest)
    return [name for name in weights.shapes if name not in written]


def _module(name: str):
    return import_module(f"tftrain.formats.{_MODULES.get(name, name)}")
