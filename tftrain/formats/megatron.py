"""Megatron-LM's BERT: a checkpoint folder with mp_rank_00/model_optim_rng.pt, of one tensor and pipeline parallel rank.

Its norms are before the sub-layers. Queries, keys and values are one tensor, in which they alternate head by head.
The token embedding has rows without a word, up to a multiple of 128. Names are those of Megatron core; those of
checkpoints of the older `megatron.model` are read too. The file is a pickle, see `torch_file`.
"""

import argparse
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tftrain.architecture.describe import describe
from tftrain.architecture.parts import Variable
from tftrain.config.model import ModelConfig
from tftrain.families.bert import PRE_NORM
from tftrain.families.family import QUERY_KEY_VALUE
from tftrain.files import names
from tftrain.files.errors import FormatError, MissingModelError
from tftrain.formats import hugging_face_config, torch_file
from tftrain.formats.links import Link, Names, as_in_torch, by_heads
from tftrain.formats.torch_file import Placeholder, Record, Tensor, TorchFile
from tftrain.formats.weights import LinkedWeights, Weights, check_tensors, tensors_of
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer

FILE = "model_optim_rng.pt"
LATEST = "latest_checkpointed_iteration.txt"
# The order of queries, keys and values is that of this version; the two before it have others.
_VERSION = 3.0
_VOCABULARY_UNIT = 128
_EXPECTED = f"expected a folder of Megatron-LM with {LATEST}, or an iteration of it with mp_rank_00/{FILE}"

_NAMES = Names(
    scopes={
        "embeddings/word": "embedding.word_embeddings.weight",
        "embeddings/position": "embedding.position_embeddings.weight",
        "embeddings/token_type": "embedding.tokentype_embeddings.weight",
        **dict.fromkeys(QUERY_KEY_VALUE, "encoder.layers.{layer}.self_attention.linear_qkv"),
        "attention/output": "encoder.layers.{layer}.self_attention.linear_proj",
        "attention/norm": "encoder.layers.{layer}.input_layernorm",
        "feed_forward/up": "encoder.layers.{layer}.mlp.linear_fc1",
        "feed_forward/down": "encoder.layers.{layer}.mlp.linear_fc2",
        "feed_forward/norm": "encoder.layers.{layer}.pre_mlp_layernorm",
        "final_norm": "encoder.final_layernorm",
        "masked_lm/transform": "lm_head.dense",
        "masked_lm/norm": "lm_head.layer_norm",
        "masked_lm/bias": "output_layer.bias",
        "pooler": "pooler.dense",
        "next_sentence": "binary_head",
    },
)
# Names of other versions and of Transformer Engine's layers, and those above.
_RENAMED = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^language_model\.", ""),
        (r"^transformer\.", "encoder."),
        (r"\.attention\.", ".self_attention."),
        (r"\.query_key_value\.", ".linear_qkv."),
        (r"\.self_attention\.dense\.", ".self_attention.linear_proj."),
        (r"\.dense_h_to_4h\.", ".linear_fc1."),
        (r"\.dense_4h_to_h\.", ".linear_fc2."),
        (r"\.input_norm\.", ".input_layernorm."),
        (r"\.post_attention_(layer)?norm\.", ".pre_mlp_layernorm."),
        (r"\.linear_qkv\.layer_norm_", ".input_layernorm."),
        (r"(encoder\.layers\.\d+)\.self_attention\.input_layernorm\.", r"\1.input_layernorm."),
        (r"\.mlp\.linear_fc1\.layer_norm_", ".pre_mlp_layernorm."),
        (r"\.final_norm\.", ".final_layernorm."),
        (r"^lm_head\.(layernorm|norm)\.", "lm_head.layer_norm."),
        (r"^lm_head\.bias$", "output_layer.bias"),
    )
]
# Our field and theirs among the arguments of a run.
_FIELDS = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_dropout_prob": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_method_std",
}
# Fields that need not be there: Megatron-LM's defaults are those of transformers, or 4 x hidden_size.
_DEFAULTS = ("intermediate_size", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
_EPSILON = 1e-5  # Megatron-LM's default
_NOTE = (
    "Megatron-LM's masked-LM output head has the exact GeLU and its blocks the tanh approximation; this project has "
    "one form for both, and predictions of masked words differ a little"
)


def read(folder: Path) -> Weights:
    """Opens a model, see `registry`."""
    path = _file(folder)
    content = TorchFile(path)
    model, arguments = _model(content.content, path)
    tensors = _tensors(content.content, path)
    if output := tensors.pop("output_layer.weight", None):
        word = tensors.get("embedding.word_embeddings.weight")
        if word is None or not np.array_equal(content.read(output), content.read(word)):
            fault = "output_layer.weight differs from the token embedding"
            raise FormatError(f"{path}: {fault}; expected a tied output layer")
    links = links_of(model, arguments["padded_vocab_size"])
    there = check_tensors(str(path), links, {name: tensor.shape for name, tensor in tensors.items()})
    weights = LinkedWeights(
        str(folder), model, there, lambda name: content.read(tensors[name]), tokenizer_files.read(folder)
    )
    if model.gelu_form == "tanh" and "masked_lm" not in weights.missing and not arguments.get("openai_gelu"):
        weights.notes = (_NOTE,)
    return weights


def read_model(folder: Path) -> tuple[ModelConfig, Tokenizer | None]:
    """Returns the model and the tokenizer of a folder."""
    path = _file(folder)
    return _model(TorchFile(path).content, path)[0], tokenizer_files.read(folder)


def _file(folder: Path) -> Path:
    """Returns the file of the newest iteration of a checkpoint folder, or of that iteration itself."""
    root, latest = folder, folder / LATEST
    if latest.is_file():
        word = latest.read_text(errors="replace").strip()
        folder = folder / (f"iter_{int(word):07d}" if word.isascii() and word.isdigit() else "release")
    ranks = sorted(path.name for path in folder.glob("mp_rank_*"))
    if len(ranks) > 1:
        raise FormatError(
            f"{folder}: it is sharded over {len(ranks)} model parallel ranks; expected one: convert it with "
            "Megatron-LM's tools/checkpoint first"
        )
    path = folder / "mp_rank_00" / FILE
    if not path.is_file():
        raise MissingModelError(f"{folder}: {_EXPECTED}")
    return names.inside(root, path.relative_to(root).as_posix(), FormatError)


def _model(content: Any, path: Path) -> tuple[ModelConfig, dict[str, Any]]:
    args = content.get("args") if isinstance(content, Mapping) else None
    if not isinstance(args, Record):
        raise FormatError(f"{path}: it has no args of a run; expected a checkpoint of Megatron-LM")
    args = {name: value for name, value in args.attributes.items() if value is not None}
    if content.get("checkpoint_version") != _VERSION:
        raise FormatError(f"{path}: checkpoint_version is {content.get('checkpoint_version')!r}; expected {_VERSION}")
    required = [theirs for ours, theirs in _FIELDS.items() if ours not in _DEFAULTS]
    if missing := [name for name in (*required, "padded_vocab_size") if name not in args]:
        raise FormatError(f"{path}: its args have no {', '.join(missing)}")
    config = {
        "model_type": PRE_NORM.name,
        "hidden_act": "gelu_pytorch_tanh" if args.get("bias_gelu_fusion") or args.get("openai_gelu") else "gelu",
        "intermediate_size": 4 * args["hidden_size"],
        **{ours: args[theirs] for ours, theirs in _FIELDS.items() if theirs in args},
        "vocab_size": args.get("vocab_size") or args["padded_vocab_size"],
        "layer_norm_eps": args.get("layernorm_epsilon") or args.get("norm_epsilon") or _EPSILON,
    }
    return hugging_face_config.model_config(config, str(path)), args


def _tensors(content: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Returns the tensors of the model under the names of Megatron core."""
    tensors: dict[str, Tensor] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, Tensor):
            name = prefix
            for pattern, replacement in _RENAMED:
                name = pattern.sub(replacement, name)
            tensors[name] = value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), inner)

    model = content.get("model")
    if not isinstance(model, Mapping):
        raise FormatError(f"{path}: it has no model; expected a checkpoint of one pipeline stage")
    add("", model)
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("_extra_state")}


def links_of(model: ModelConfig, rows: int) -> list[Link]:
    """Returns the link of every tensor of a model; the token embedding and its bias have so many rows."""

    def alone(theirs: str, variable: Variable) -> Link:
        if variable.name not in ("embeddings/word", "masked_lm/bias"):
            return as_in_torch(theirs, variable)
        words, *others = variable.shape
        return Link(
            theirs,
            (rows, *others),
            (variable.name,),
            lambda values: np.concatenate([values[0], np.zeros((rows - words, *others), np.float32)]),
            lambda tensor: [tensor[:words]],
        )

    names = _NAMES._replace(alone=alone, together=partial(by_heads, heads=model.num_attention_heads))
    return names.links(describe(model).variables())


def write(folder: Path, weights: Weights) -> Iterable[str]:
    """Writes a model with the heads that are there, see `registry`."""
    model = weights.model
    hugging_face_config.require(model, "Megatron-LM", ("pre",))
    rows = -(-model.vocab_size // _VOCABULARY_UNIT) * _VOCABULARY_UNIT
    links = [link for link in links_of(model, rows) if link.ours[0] in weights.shapes]
    args = {theirs: getattr(model, ours) for ours, theirs in _FIELDS.items()}
    args |= {
        "ffn_hidden_size": model.feed_forward_size,
        "layernorm_epsilon": model.layer_norm_epsilon,
        "norm_epsilon": model.layer_norm_epsilon,
        "vocab_size": model.vocab_size,
        "padded_vocab_size": rows,
        "make_vocab_size_divisible_by": _VOCABULARY_UNIT,
        "bias_gelu_fusion": model.gelu_form == "tanh",
        "openai_gelu": False,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "add_position_embedding": True,
        "position_embedding_type": "learned_absolute",
    }
    content = {
        "args": argparse.Namespace(**args),
        "checkpoint_version": _VERSION,
        "iteration": 0,
        "model": {link.theirs: Placeholder(link.theirs, link.shape) for link in links},
    }
    (folder / "release/mp_rank_00").mkdir(parents=True)
    torch_file.write(folder / "release/mp_rank_00" / FILE, content, tensors_of(weights, links))
    (folder / LATEST).write_text("release")
    return weights.shapes
