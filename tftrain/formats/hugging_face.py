"""Hugging Face's transformers: a folder with config.json, model.safetensors and the tokenizer's files.

Models: BertForPreTraining, BertForMaskedLM and BertModel; BertForSequenceClassification, BertForTokenClassification and
BertForQuestionAnswering; MegatronBertForPreTraining and so on, which have the norms before the sub-layers;
GPT2LMHeadModel and GPT2Model; LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM; ModernBertForMaskedLM and
ModernBertModel, and the three of fine-tuned tasks.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tftrain.config.train import ModelConfig
from tftrain.formats import safetensors_file, tokenizer, torch_file
from tftrain.formats.errors import FormatError, MissingFileError
from tftrain.formats.hugging_face_config import config_json, model_config, require, special_ids
from tftrain.formats.hugging_face_tables import kind_of, links_of
from tftrain.formats.safetensors_file import INDEX, WEIGHTS, SafetensorsFile
from tftrain.formats.tokenizer import Tokenizer
from tftrain.formats.torch_file import TorchFile
from tftrain.formats.weights import LinkedWeights, Weights, check_tensors, part_of, require_heads, tensors_of
from tftrain.host import names

CONFIG = "config.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# The ends of the names of the classes for fine-tuned tasks.
_ENDINGS = {
    **dict.fromkeys(("classification", "multi_label", "regression"), "ForSequenceClassification"),
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "embedding": "Model",
}
_BUFFERS = (".position_ids", ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # the ends of their names
# The beginnings of names that base models do not have.
_WITHOUT_PREFIX = ("cls.", "lm_head.", "head.", "decoder.", "classifier.", "qa_outputs.")


def read(folder: Path, allow_pickle: bool = False) -> Weights:
    """Opens a model; with `allow_pickle` also from pytorch_model.bin where there is no safetensors file.

    Raises:
        FormatError: a file is missing or damaged, or the model is not one that this project has.
    """
    model, own_tokenizer = read_model(folder)
    files = _open(folder, allow_pickle)
    # Base models have no prefix, and old files have other names for the parameters of norms.
    kind, prefix = kind_of(model), kind_of(model).prefix
    has_prefix = any(name.startswith(prefix) for file in files for name in file.shapes)
    holders = {_full_name(name, "" if has_prefix else prefix): (file, name) for file in files for name in file.shapes}
    shapes = {name: file.shapes[theirs] for name, (file, theirs) in holders.items()}

    def tensor(name: str) -> np.ndarray:
        file, theirs = holders[name]
        return file.read(theirs)

    buffers = [name for name in shapes if name.endswith(_BUFFERS)]
    tied = kind.tied_copies if model.tie_output else {}
    links = check_tensors(str(folder), links_of(model), shapes, {*buffers, *tied})
    for copy, name in tied.items():
        if copy in shapes and not np.array_equal(tensor(copy), tensor(name)):
            raise FormatError(
                f"{folder}: {copy} differs from {name}; expected an output layer tied to the token embedding"
            )
    return LinkedWeights(str(folder), model, links, tensor, own_tokenizer)


def read_model(folder: Path) -> tuple[ModelConfig, Tokenizer | None]:
    """Returns the model and the tokenizer of a folder."""
    return model_config(tokenizer.read_json(folder / CONFIG), str(folder / CONFIG)), tokenizer.read(folder)


def _full_name(name: str, prefix: str) -> str:
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith(_WITHOUT_PREFIX) else prefix + name


class _Pickle:
    """A file of `torch.save`, as `SafetensorsFile`."""

    def __init__(self, path: Path):
        self._file = TorchFile(path)
        tensors = self._file.content if isinstance(self._file.content, Mapping) else {}
        self._tensors = {name: value for name, value in tensors.items() if isinstance(value, torch_file.Tensor)}
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor."""
        return self._file.read(self._tensors[name])


def _open(folder: Path, allow_pickle: bool) -> list[SafetensorsFile | _Pickle]:
    """Opens the file, or the files, with the tensors."""
    if (folder / WEIGHTS).is_file():
        return [SafetensorsFile(folder / WEIGHTS)]
    if (folder / INDEX).is_file():
        try:
            files = set(tokenizer.read_json(folder / INDEX)["weight_map"].values())
            paths = [names.inside(folder, name) for name in sorted(files)]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{folder / INDEX}: weight_map does not name files of this folder: {error}") from error
        return [SafetensorsFile(path) for path in paths]
    if allow_pickle and (folder / PICKLES[0]).is_file():
        return [_Pickle(folder / PICKLES[0])]
    if pickle := next((name for name in PICKLES if (folder / name).is_file()), None):
        raise FormatError(
            f"{folder / pickle}: a pickle, which can run any code when it is loaded; expected {WEIGHTS}: write the "
            "model again with save_pretrained of a current version of transformers, or allow it with --allow_pickle"
        )
    raise MissingFileError(f"{folder / WEIGHTS}: no such file; expected a folder that save_pretrained has written")


def write(
    folder: Path, weights: Weights, architecture: str | None = None, max_shard_bytes: float = math.inf
) -> Iterable[str]:
    """Writes a model into an empty folder; returns the names of the variables that its class has.

    Args:
        architecture: a name of transformers; by default the largest whose heads are all there.
        max_shard_bytes: most bytes of tensors in a file.

    Raises:
        FormatError: transformers has no such model.
    """
    model = weights.model
    require(model, "transformers", ("pre",) if model.is_decoder else ("pre", "post"))
    kind = kind_of(model)
    name, heads = _architecture(weights, kind.architectures, architecture)
    # Base models have no prefix.
    prefix = kind.prefix if name.endswith("Model") and "LM" not in name else ""
    links = [link for link in links_of(model) if part_of(link.ours[0]) in ("", *heads)]
    links = [link._replace(theirs=link.theirs.removeprefix(prefix)) for link in links]
    shapes = {link.theirs: link.shape for link in links}
    safetensors_file.write_sharded(folder, shapes, tensors_of(weights, links), max_shard_bytes)
    ids = special_ids(model, weights.tokenizer)
    text = json.dumps(config_json(model, name) | ids, indent=2)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    return [name for link in links for name in link.ours]


def _architecture(weights: Weights, known: Mapping[str, Sequence[str]], asked: str | None) -> tuple[str, Sequence[str]]:
    """Returns the class to write, and its heads, of those that transformers has for the kind of model."""
    task, ending = weights.model.task, _ENDINGS.get(weights.model.task)
    known = {
        name: heads for name, heads in known.items() if (name.endswith(ending) if ending else "classifier" not in heads)
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
