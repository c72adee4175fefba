"""The original BERT for TensorFlow 1: a folder with bert_config.json, bert_model.ckpt.* and vocab.txt.

Its GeLU is the tanh approximation, which its config calls "gelu", and its norms have an epsilon of 1e-12.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tftrain.architecture.describe import describe
from tftrain.architecture.parts import Variable
from tftrain.config.model import ModelConfig
from tftrain.families.bert import POST_NORM
from tftrain.files.errors import FormatError
from tftrain.formats import hugging_face_config
from tftrain.formats.links import Link, Names, same, transposed
from tftrain.formats.weights import LinkedWeights, Weights, check_tensors, tensors_of
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer

CONFIG, CHECKPOINT = "bert_config.json", "bert_model.ckpt"
_EPSILON = 1e-12
_TOKEN_TYPES = 16  # by default; other defaults of BertConfig in google-research/bert are those of transformers
_SLOTS = ("/adam_m", "/adam_v")  # what the optimizer keeps beside each variable


def _link(theirs: str, variable: Variable) -> Link:
    """The output layer of the next-sentence head is [classes, hidden]; all others are [inputs, outputs]."""
    if variable.name == "next_sentence/kernel":
        return transposed("cls/seq_relationship/output_weights", variable)
    return same(theirs, variable)


# transformers took its names for BERT from these, in torch's manner.
_SCOPES = {
    ours: theirs.replace(".", "/").replace("layer/{", "layer_{").removesuffix("/weight")
    for ours, theirs in POST_NORM.scopes.items()
}
_BIASES = {"masked_lm/bias": "cls/predictions/output_bias", "next_sentence/bias": "cls/seq_relationship/output_bias"}
_LEAVES = {leaf: f"/{leaf}" for leaf in ("kernel", "bias", "gamma", "beta")}
_NAMES = Names(_SCOPES | _BIASES, _LEAVES, _link)


def read(folder: Path) -> Weights:
    """Opens a model, see `registry`."""
    from tftrain.formats.tf_checkpoint import TfCheckpoint

    model, own_tokenizer = read_model(folder)
    checkpoint = TfCheckpoint(folder / CHECKPOINT)
    of_training = [name for name in checkpoint.shapes if name == "global_step" or name.endswith(_SLOTS)]
    links = _NAMES.links(describe(model).variables())
    there = check_tensors(str(folder / CHECKPOINT), links, checkpoint.shapes, of_training)
    return LinkedWeights(str(folder), model, there, checkpoint.read, own_tokenizer)


def read_model(folder: Path) -> tuple[ModelConfig, Tokenizer | None]:
    """Returns the model and the tokenizer of a folder."""
    return model_config(tokenizer_files.read_json(folder / CONFIG), str(folder / CONFIG)), tokenizer_files.read(folder)


def model_config(config: dict[str, Any], path: str) -> ModelConfig:
    """Returns the model that a bert_config.json describes; its fields are those of transformers."""
    act = config.get("hidden_act", "gelu")
    if act != "gelu":
        raise FormatError(f"{path}: hidden_act is {act!r}; expected 'gelu'")
    own = {"model_type": POST_NORM.name, "type_vocab_size": _TOKEN_TYPES}
    model = hugging_face_config.model_config({**own, **config}, path)
    return dataclasses.replace(model, gelu_form="tanh", layer_norm_epsilon=_EPSILON)


def write(folder: Path, weights: Weights) -> Iterable[str]:
    """Writes a model with the heads that are there, see `registry`."""
    from tftrain.formats import tf_checkpoint

    write_config(folder, weights.model)
    links = _NAMES.links(each for each in describe(weights.model).variables() if each.name in weights.shapes)
    tf_checkpoint.write(folder / CHECKPOINT, tensors_of(weights, links))
    return weights.shapes


def write_config(folder: Path, model: ModelConfig) -> None:
    """Writes bert_config.json; raises a FormatError if the original BERT has no such model."""
    hugging_face_config.require(model, "TensorFlow libraries", ("post",))
    for name, only in (("gelu_form", "tanh"), ("layer_norm_epsilon", _EPSILON)):
        if getattr(model, name) != only:
            has = f"--to: the model's {name} is {getattr(model, name)}"
            raise FormatError(f"{has}, BERT for TensorFlow has only {only}; expected --to=hf:FOLDER")
    theirs = hugging_face_config.config_json(model, "")
    names = sorted(name for name, _ in POST_NORM.fields.values() if name != "layer_norm_eps")
    config = {name: theirs[name] for name in names} | {"hidden_act": "gelu"}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
