"""The original BERT for TensorFlow 1: a folder with bert_config.json, bert_model.ckpt.* and vocab.txt.

Its GeLU is the tanh approximation, which its config calls "gelu", and its norms have an epsilon of 1e-12.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tftrain.architecture.describe import describe
from tftrain.architecture.parts import Variable
from tftrain.config.train import ModelConfig
from tftrain.formats import hugging_face_config, tokenizer
from tftrain.formats.errors import FormatError
from tftrain.formats.links import Link, Names, same, transposed
from tftrain.formats.tokenizer import Tokenizer
from tftrain.formats.weights import LinkedWeights, Weights, check_tensors

CONFIG, CHECKPOINT = "bert_config.json", "bert_model.ckpt"
_EPSILON = 1e-12
# The defaults of BertConfig in google-research/bert are those of transformers but for this one.
_TOKEN_TYPES = 16
# What the optimizer of the original BERT keeps beside each variable.
_SLOTS = ("/adam_m", "/adam_v")


def _kernel(theirs: str, variable: Variable) -> Link:
    """The output layer of the next-sentence head is [classes, hidden]; all others are [inputs, outputs]."""
    if variable.name.startswith("next_sentence"):
        return transposed("cls/seq_relationship/output_weights", variable)
    return same(theirs, variable)


_NAMES = Names(
    scopes={
        "embeddings/word": "bert/embeddings/word_embeddings",
        "embeddings/position": "bert/embeddings/position_embeddings",
        "embeddings/token_type": "bert/embeddings/token_type_embeddings",
        "embeddings/norm": "bert/embeddings/LayerNorm",
        "attention/query": "bert/encoder/layer_{layer}/attention/self/query",
        "attention/key": "bert/encoder/layer_{layer}/attention/self/key",
        "attention/value": "bert/encoder/layer_{layer}/attention/self/value",
        "attention/output": "bert/encoder/layer_{layer}/attention/output/dense",
        "attention/norm": "bert/encoder/layer_{layer}/attention/output/LayerNorm",
        "feed_forward/up": "bert/encoder/layer_{layer}/intermediate/dense",
        "feed_forward/down": "bert/encoder/layer_{layer}/output/dense",
        "feed_forward/norm": "bert/encoder/layer_{layer}/output/LayerNorm",
        "masked_lm/transform": "cls/predictions/transform/dense",
        "masked_lm/norm": "cls/predictions/transform/LayerNorm",
        "masked_lm/bias": "cls/predictions/output_bias",
        "pooler": "bert/pooler/dense",
        "next_sentence": "cls/seq_relationship",
        "next_sentence/bias": "cls/seq_relationship/output_bias",
    },
    leaves={"kernel": "/kernel", "bias": "/bias", "gamma": "/gamma", "beta": "/beta"},
    kernel=_kernel,
)


def read(folder: Path) -> Weights:
    """Opens a model.

    Raises:
        FormatError: a file is missing or damaged, or the model is not one that this project has.
    """
    from tftrain.formats.tf_checkpoint import TfCheckpoint

    model, own_tokenizer = read_model(folder)
    checkpoint = TfCheckpoint(folder / CHECKPOINT)
    of_training = [name for name in checkpoint.shapes if name == "global_step" or name.endswith(_SLOTS)]
    links = check_tensors(str(folder / CHECKPOINT), links_of(model), checkpoint.shapes, of_training)
    return LinkedWeights(str(folder), model, links, checkpoint.read, own_tokenizer)


def read_model(folder: Path) -> tuple[ModelConfig, Tokenizer | None]:
    """Returns the model and the tokenizer of a folder."""
    return model_config(tokenizer.read_json(folder / CONFIG), str(folder / CONFIG)), tokenizer.read(folder)


def model_config(config: dict[str, Any], path: str) -> ModelConfig:
    """Returns the model that a bert_config.json describes; its fields are those of transformers."""
    act = config.get("hidden_act", "gelu")
    if act != "gelu":
        raise FormatError(f"{path}: hidden_act is {act!r}; expected 'gelu'")
    found = hugging_face_config.model_config({"model_type": "bert", "type_vocab_size": _TOKEN_TYPES, **config}, path)
    return dataclasses.replace(found, gelu_form="tanh", layer_norm_epsilon=_EPSILON)


def links_of(model: ModelConfig) -> list[Link]:
    """Returns the link of every tensor of a model with all its heads."""
    return [_NAMES.link(each) for each in describe(model).variables()]


def write(folder: Path, weights: Weights, architecture: str | None = None) -> list[str]:
    """Writes a model with the heads that are there; returns the variables that are left out: none.

    Raises:
        FormatError: the original BERT has no such model.
    """
    if architecture:
        raise FormatError(f"--architecture={architecture}: the format tf1 has only one; remove this flag")
    from tftrain.formats import tf_checkpoint

    write_config(folder, weights.model)
    links = [link for link in links_of(weights.model) if link.ours[0] in weights.shapes]

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for link in links:
            yield link.theirs, link.join([weights.read(each) for each in link.ours])

    tf_checkpoint.write(folder / CHECKPOINT, {link.theirs: link.shape for link in links}, tensors())
    if weights.tokenizer:
        tokenizer.write(folder, weights.tokenizer)
    return []


def write_config(folder: Path, model: ModelConfig) -> None:
    """Writes bert_config.json.

    Raises:
        FormatError: the original BERT has no such model.
    """
    hugging_face_config.require(model, "TensorFlow libraries", ("post",))
    for name, only in (("gelu_form", "tanh"), ("layer_norm_epsilon", _EPSILON)):
        if getattr(model, name) != only:
            raise FormatError(f"--{name}={getattr(model, name)}: BERT for TensorFlow has only {only}")
    theirs = hugging_face_config.config_json(model, "")
    config = {name: theirs[name] for name in _FIELDS} | {"hidden_act": "gelu"}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


_FIELDS = (
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
