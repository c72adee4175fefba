"""Hugging Face's transformers: a folder with config.json, model.safetensors and the tokenizer's files.

The types and classes are those of the families, `tftrain.families`.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import ModelConfig
from tftrain.files import names
from tftrain.files.errors import FormatError, MissingModelError
from tftrain.formats import hugging_face_config, safetensors_file, sentence_transformers, torch_file
from tftrain.formats.hugging_face_config import CompletedConfig
from tftrain.formats.hugging_face_names import Shapes, left_out, links_of, type_of
from tftrain.formats.safetensors_file import INDEX, WEIGHTS, SafetensorsFile
from tftrain.formats.torch_file import TorchFile
from tftrain.formats.weights import LinkedWeights, Weights, check_tensors, listed, part_of, require_heads, tensors_of
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer

CONFIG = "config.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_STATES = ("state_dict", "model_state_dict", "model", "module")  # where trainers keep the tensors of a model
# The ends of the names of the classes for fine-tuned tasks.
_ENDINGS = {
    **dict.fromkeys(("classification", "multi_label", "regression"), "ForSequenceClassification"),
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "embedding": "Model",
}
# The ends of the names of tensors that are computed, not learned.
_BUFFERS = (".position_ids", ".token_type_ids", ".attn.bias", ".masked_bias", "inv_freq", ".cos_cached", ".sin_cached")


def read(folder: Path, allow_pickle: bool = False) -> Weights:
    """Opens a model, see `registry`; with `allow_pickle` also one without a safetensors file, of pytorch_model.bin."""
    modules = sentence_transformers.read(folder)
    folder = modules.transformer
    config = _config(folder)
    files = _open(folder, allow_pickle)
    holders = {name: file for file in files for name in file.shapes}
    model, whole = _model(folder, config, {name: file.shapes[name] for name, file in holders.items()})
    model = dataclasses.replace(model, **modules.flags)
    own, links = type_of(model), links_of(model)
    shapes = {name: holders[theirs].shapes[theirs] for name, theirs in whole.names.items()}
    dense = _open(modules.dense, allow_pickle)[0] if modules.dense else None
    if dense:
        links += sentence_transformers.dense_links(model)
        shapes |= dense.shapes

    def tensor(name: str) -> np.ndarray:
        if dense and name in dense.shapes:
            return dense.read(name)
        theirs = whole.names[name]
        return holders[theirs].read(theirs)

    used = {link.theirs for link in links}
    tied = {} if model.is_fine_tuned or not model.tie_output else own.tied_copies
    rest = {each: theirs for each, theirs in whole.names.items() if each not in {*used, *tied}}
    learned = {each for each in rest if not each.endswith(_BUFFERS) and holders[rest[each]].is_float(rest[each])}
    lost = [rest[name] for name in left_out(learned, used & set(shapes), str(folder))]
    hugging_face_config.check_class(whole.config, own, lost, str(folder / CONFIG))
    there = check_tensors(str(folder), links, shapes, set(shapes) - used)
    for copy, name in tied.items():
        if copy in shapes and name in shapes and not np.array_equal(tensor(copy), tensor(name)):
            expected = "expected an output layer tied to the token embedding"
            raise FormatError(f"{folder}: {copy} differs from {name}; {expected}")
    needs_tie = model.is_causal or "masked_lm" in {part_of(name) for link in there for name in link.ours}
    if tied and needs_tie and whole.config.get("tie_word_embeddings") is False and not set(tied) & set(shapes):
        raise FormatError(f"{folder / CONFIG}: tie_word_embeddings is False, and there is no {next(iter(tied))}")
    weights = LinkedWeights(str(folder), model, there, tensor, modules.tokenizer())
    if modules.flags:
        weights.fine_tuning = FineTuningConfig()
        if modules.max_seq_length:
            weights.max_seq_length = int(min(modules.max_seq_length, model.longest_sequence))
    notes = [f"{listed(lost)} left out, as the model has no such part"] if lost else []
    if others := tokenizer_files.other_templates(folder):
        notes.append(f"the chat templates other than the default are left out: {', '.join(others)}")
    weights.notes = (*whole.notes, *(f"{folder}: {note}" for note in notes), *modules.notes)
    return weights


def read_model(folder: Path) -> tuple[ModelConfig, Tokenizer | None]:
    """Returns the model and the tokenizer of a folder."""
    modules = sentence_transformers.read(folder)
    folder = modules.transformer
    config = _config(folder)
    try:
        files = _open(folder, False)
    except FormatError:  # Who reads the weights says why.
        files = []
    shapes = {name: shape for file in files for name, shape in file.shapes.items()}
    return dataclasses.replace(_model(folder, config, shapes)[0], **modules.flags), modules.tokenizer()


def _config(folder: Path) -> dict[str, Any]:
    adapter = next((each for each in ADAPTERS if (folder / each).is_file()), None)
    if adapter and not any((folder / each).is_file() for each in (WEIGHTS, INDEX, *PICKLES)):
        expected = "expected the whole model, as merge_and_unload of PEFT makes it"
        raise MissingModelError(f"{folder}: {adapter} has only an adapter; {expected}")
    return tokenizer_files.read_json(folder / CONFIG)


def _model(folder: Path, config: dict[str, Any], shapes: Shapes) -> tuple[ModelConfig, CompletedConfig]:
    whole = hugging_face_config.completed(config, str(folder / CONFIG), shapes)
    return hugging_face_config.model_config(whole.config, str(folder / CONFIG)), whole


class _Pickle:
    """A file of `torch.save`, as `SafetensorsFile`; its tensors may be in a dictionary of a trainer's."""

    def __init__(self, path: Path):
        self._file, self._tensors = TorchFile(path), {}
        content = self._file.content if isinstance(self._file.content, Mapping) else {}
        for each in (content, *(content.get(name) for name in _STATES)):
            tensors = dict(each) if isinstance(each, Mapping) else {}
            self._tensors = self._tensors or {
                name: x for name, x in tensors.items() if isinstance(x, torch_file.Tensor)
            }
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def is_float(self, name: str) -> bool:
        return self._tensors[name].storage[1].kind not in "biu"

    def read(self, name: str) -> np.ndarray:
        return self._file.read(self._tensors[name])


def _open(folder: Path, allow_pickle: bool) -> list[SafetensorsFile | _Pickle]:
    name = next((each for each in (WEIGHTS, INDEX, *PICKLES) if (folder / each).is_file()), None)
    if name is None:
        raise MissingModelError(f"{folder / WEIGHTS}: no such file; expected a folder that save_pretrained has written")
    if name in PICKLES and not allow_pickle:
        raise FormatError(
            f"{folder / name}: the weights are in a pickle, which can run any code when it is loaded; expected "
            f"{WEIGHTS}: convert the model first with python -m tftrain.convert --from=hf:{folder} --to=hf:NEW_FOLDER "
            "--allow_pickle, which runs none"
        )
    paths = [folder / name]
    if name.endswith(".json"):
        try:
            files = set(tokenizer_files.read_json(folder / name)["weight_map"].values())
            paths = [names.inside(folder, file) for file in sorted(files)]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{folder / name}: weight_map does not name files of this folder: {error}") from error
    return [(_Pickle if name in PICKLES else SafetensorsFile)(path) for path in paths]


def write(
    folder: Path, weights: Weights, architecture: str | None = None, max_shard_bytes: float = math.inf
) -> Iterable[str]:
    """Writes a model, see `registry.write_weights`; for vectors with the files of sentence-transformers."""
    model = weights.model
    hugging_face_config.require(model, "transformers", ("pre",) if model.is_causal else ("pre", "post"))
    own = type_of(model)
    name, heads = _architecture(weights, own.architectures, architecture)
    # Base models have no prefix.
    prefix = own.prefix if name.endswith("Model") and "LM" not in name else ""
    links = [link for link in links_of(model) if part_of(link.ours[0]) in ("", *heads)]
    links = [link._replace(theirs=link.theirs.removeprefix(prefix)) for link in links]
    shapes = {link.theirs: link.shape for link in links}
    safetensors_file.write_sharded(folder, shapes, tensors_of(weights, links), max_shard_bytes)
    ids = hugging_face_config.special_ids(model, weights.tokenizer)
    text = json.dumps(hugging_face_config.config_json(model, name) | ids, indent=2)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    written = [name for link in links for name in link.ours]
    if model.gives_vectors:
        written += sentence_transformers.write(folder, weights)
    return written


def _architecture(weights: Weights, known: Mapping[str, Sequence[str]], asked: str | None) -> tuple[str, Sequence[str]]:
    """Returns the class to write, and its heads, of those that transformers has for the kind of model."""
    task, ending = weights.model.task, _ENDINGS.get(weights.model.task)
    known = {
        name: heads
        for name, heads in known.items()
        if (name.endswith(ending) and "LMHead" not in name if ending else "classifier" not in heads)
    }
    if asked and asked not in known:
        raise FormatError(f"--architecture={asked}: expected one of {', '.join(known)}")
    if task == "embedding":  # BertModel with add_pooling_layer=False
        return next(iter(known)), ()
    fitting = [asked] if asked else [name for name, heads in known.items() if weights.parts.issuperset(heads)]
    if not fitting:
        raise FormatError(
            f"{weights.path}: it lacks heads of each of {', '.join(known)}; choose one with --architecture, and add "
            "--init_missing"
        )
    require_heads(weights, known[fitting[0]], fitting[0])
    return fitting[0], known[fitting[0]]
