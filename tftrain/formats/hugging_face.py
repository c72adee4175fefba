"""Hugging Face's transformers: a folder with config.json, model.safetensors and the tokenizer's files.

Models: BertForPreTraining, BertForMaskedLM and BertModel; BertForSequenceClassification, BertForTokenClassification and
BertForQuestionAnswering; MegatronBertForPreTraining and so on, which have the norms before the sub-layers;
GPT2LMHeadModel and GPT2Model; LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM; ModernBertForMaskedLM and
ModernBertModel, and the three of fine-tuned tasks.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tftrain.architecture.describe import describe
from tftrain.config.train import ModelConfig
from tftrain.formats import safetensors_file, tokenizer, torch_file
from tftrain.formats.errors import FormatError, MissingFileError
from tftrain.formats.hugging_face_config import ARCHITECTURES, config_json, kind, model_config, require, special_ids
from tftrain.formats.links import Link, Names, same, transposed
from tftrain.formats.safetensors_file import INDEX, WEIGHTS, SafetensorsFile
from tftrain.formats.tokenizer import Tokenizer
from tftrain.formats.torch_file import TorchFile
from tftrain.formats.weights import LinkedWeights, Weights, check_tensors, part_of

CONFIG = "config.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

_HEADS = {
    "ForPreTraining": ("masked_lm", "pooler", "next_sentence"),
    "ForMaskedLM": ("masked_lm",),
    "Model": ("pooler",),
    "ForSequenceClassification": ("pooler", "classifier"),
    "ForTokenClassification": ("classifier",),
    "ForQuestionAnswering": ("classifier",),
}
_ARCHITECTURES = {
    "bert": {f"Bert{name}": heads for name, heads in _HEADS.items()},
    "megatron-bert": {f"MegatronBert{name}": heads for name, heads in _HEADS.items()},
    "gpt2": {"GPT2LMHeadModel": (), "GPT2Model": ()},
    "llama": {"LlamaForCausalLM": ()},
    "qwen2": {"Qwen2ForCausalLM": ()},
    "qwen3": {"Qwen3ForCausalLM": ()},
    "modernbert": {
        "ModernBertForMaskedLM": ("masked_lm",),
        "ModernBertModel": (),
        **{
            f"ModernBert{name}": ("masked_lm", "classifier")
            for name in ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
        },
    },
}
_BERT = Names(
    scopes={
        "embeddings/word": "bert.embeddings.word_embeddings.weight",
        "embeddings/position": "bert.embeddings.position_embeddings.weight",
        "embeddings/token_type": "bert.embeddings.token_type_embeddings.weight",
        "embeddings/norm": "bert.embeddings.LayerNorm",
        "attention/query": "bert.encoder.layer.{layer}.attention.self.query",
        "attention/key": "bert.encoder.layer.{layer}.attention.self.key",
        "attention/value": "bert.encoder.layer.{layer}.attention.self.value",
        "attention/output": "bert.encoder.layer.{layer}.attention.output.dense",
        "attention/norm": "bert.encoder.layer.{layer}.attention.output.LayerNorm",
        "feed_forward/up": "bert.encoder.layer.{layer}.intermediate.dense",
        "feed_forward/down": "bert.encoder.layer.{layer}.output.dense",
        "feed_forward/norm": "bert.encoder.layer.{layer}.output.LayerNorm",
        "masked_lm/transform": "cls.predictions.transform.dense",
        "masked_lm/norm": "cls.predictions.transform.LayerNorm",
        "masked_lm/bias": "cls.predictions.bias",
        "pooler": "bert.pooler.dense",
        "next_sentence": "cls.seq_relationship",
        "classifier": "classifier",
    },
    leaves={"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"},
    kernel=transposed,
)
# The names of the embedding's norm, which such a model does not have, stay without harm.
_MEGATRON_BERT = _BERT._replace(
    scopes={
        **_BERT.scopes,
        "attention/norm": "bert.encoder.layer.{layer}.attention.ln",
        "feed_forward/norm": "bert.encoder.layer.{layer}.ln",
        "final_norm": "bert.encoder.ln",
    }
)
_GPT = Names(
    scopes={
        "embeddings/word": "transformer.wte.weight",
        "embeddings/position": "transformer.wpe.weight",
        "attention/query": "transformer.h.{layer}.attn.c_attn",
        "attention/key": "transformer.h.{layer}.attn.c_attn",
        "attention/value": "transformer.h.{layer}.attn.c_attn",
        "attention/output": "transformer.h.{layer}.attn.c_proj",
        "attention/norm": "transformer.h.{layer}.ln_1",
        "feed_forward/up": "transformer.h.{layer}.mlp.c_fc",
        "feed_forward/down": "transformer.h.{layer}.mlp.c_proj",
        "feed_forward/norm": "transformer.h.{layer}.ln_2",
        "final_norm": "transformer.ln_f",
    },
    leaves={"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"},
    kernel=same,  # its layers are Conv1D, whose kernels are [inputs, outputs]
)
_LLAMA = Names(
    scopes={
        "embeddings/word": "model.embed_tokens.weight",
        "attention/query": "model.layers.{layer}.self_attn.q_proj",
        "attention/key": "model.layers.{layer}.self_attn.k_proj",
        "attention/value": "model.layers.{layer}.self_attn.v_proj",
        "attention/query_norm": "model.layers.{layer}.self_attn.q_norm",
        "attention/key_norm": "model.layers.{layer}.self_attn.k_norm",
        "attention/output": "model.layers.{layer}.self_attn.o_proj",
        "attention/norm": "model.layers.{layer}.input_layernorm",
        "feed_forward/gate": "model.layers.{layer}.mlp.gate_proj",
        "feed_forward/up": "model.layers.{layer}.mlp.up_proj",
        "feed_forward/down": "model.layers.{layer}.mlp.down_proj",
        "feed_forward/norm": "model.layers.{layer}.post_attention_layernorm",
        "final_norm": "model.norm",
        "output": "lm_head.weight",
    },
    leaves={"kernel": ".weight", "bias": ".bias", "gamma": ".weight"},
    kernel=transposed,
)
_MODERNBERT = Names(
    scopes={
        "embeddings/word": "model.embeddings.tok_embeddings.weight",
        "embeddings/norm": "model.embeddings.norm",
        "attention/query": "model.layers.{layer}.attn.Wqkv",
        "attention/key": "model.layers.{layer}.attn.Wqkv",
        "attention/value": "model.layers.{layer}.attn.Wqkv",
        "attention/output": "model.layers.{layer}.attn.Wo",
        "attention/norm": "model.layers.{layer}.attn_norm",
        "feed_forward/gate": "model.layers.{layer}.mlp.Wi",
        "feed_forward/up": "model.layers.{layer}.mlp.Wi",
        "feed_forward/down": "model.layers.{layer}.mlp.Wo",
        "feed_forward/norm": "model.layers.{layer}.mlp_norm",
        "final_norm": "model.final_norm",
        "masked_lm/transform": "head.dense",
        "masked_lm/norm": "head.norm",
        "masked_lm/bias": "decoder.bias",
        "classifier": "classifier",
    },
    leaves={"kernel": ".weight", "bias": ".bias", "gamma": ".weight"},
    kernel=transposed,
)
_BUFFERS = (".position_ids", ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # the ends of their names
_NAMES = {
    "bert": _BERT,
    "megatron-bert": _MEGATRON_BERT,
    "gpt2": _GPT,
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "modernbert": _MODERNBERT,
}
# What base models leave out at the beginning of names.
_PREFIXES = {"bert": "bert.", "gpt": "transformer.", "llama": "model.", "modernbert": "model."}
_WITHOUT_PREFIX = ("cls.", "lm_head.", "head.", "decoder.", "classifier.", "qa_outputs.")
# Copies of other tensors, by name, that must be equal to them.
_TIED = {
    "bert": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "gpt": {"lm_head.weight": "transformer.wte.weight"},
    "llama": {"lm_head.weight": "model.embed_tokens.weight"},
    "modernbert": {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
}


def read(folder: Path, allow_pickle: bool = False) -> Weights:
    """Opens a model.

    Args:
        folder: of the model.
        allow_pickle: whether pytorch_model.bin may be read where there is no safetensors file.

    Raises:
        FormatError: a file is missing or damaged, or the model is not one that this project has.
    """
    model, own_tokenizer = read_model(folder)
    files = _open(folder, allow_pickle)
    # Base models have no prefix, and old files have other names for the parameters of norms.
    prefix = _PREFIXES[model.model_family]
    has_prefix = any(name.startswith(prefix) for file in files for name in file.shapes)
    holders = {_full_name(name, "" if has_prefix else prefix): (file, name) for file in files for name in file.shapes}
    shapes = {name: file.shapes[theirs] for name, (file, theirs) in holders.items()}

    def tensor(name: str) -> np.ndarray:
        file, theirs = holders[name]
        return file.read(theirs)

    buffers = [name for name in shapes if name.endswith(_BUFFERS)]
    tied = _TIED[model.model_family] if model.tie_output else {}
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
        names = tokenizer.read_json(folder / INDEX).get("weight_map")
        names = set(names.values()) if isinstance(names, dict) else {None}
        if any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise FormatError(f"{folder / INDEX}: weight_map does not name files of this folder")
        return [SafetensorsFile(folder / name) for name in sorted(names)]
    if allow_pickle and (folder / PICKLES[0]).is_file():
        return [_Pickle(folder / PICKLES[0])]
    if pickle := next((name for name in PICKLES if (folder / name).is_file()), None):
        raise FormatError(
            f"{folder / pickle}: a pickle, which can run any code when it is loaded; expected {WEIGHTS}: write the "
            "model again with save_pretrained of a current version of transformers, or allow it with --allow_pickle"
        )
    raise MissingFileError(f"{folder / WEIGHTS}: no such file; expected a folder that save_pretrained has written")


def links_of(model: ModelConfig) -> list[Link]:
    """Returns the link of every tensor of a model with all its heads."""
    names = _NAMES[kind(model)]
    if model.task == "question_answering" and model.model_family == "bert":
        names = names._replace(scopes={**names.scopes, "classifier": "qa_outputs"})
    return names.links(describe(model).variables())


def write(
    folder: Path, weights: Weights, architecture: str | None = None, max_shard_bytes: float = math.inf
) -> list[str]:
    """Writes a model.

    Args:
        folder: an empty one.
        weights: of the model.
        architecture: a name of transformers; by default the largest whose heads are all there.
        max_shard_bytes: most bytes of tensors in a file.

    Returns:
        The variables that the architecture does not have, which are left out.

    Raises:
        FormatError: transformers has no such model.
    """
    model = weights.model
    require(model, "transformers", ("pre",) if model.is_decoder else ("pre", "post"))
    name, heads = _architecture(weights, architecture)
    links = [link for link in links_of(model) if part_of(link.ours[0]) in ("", *heads)]
    # Base models have no prefix.
    prefix = _PREFIXES[model.model_family] if name.endswith("Model") and "LM" not in name else ""
    shapes = {link.theirs.removeprefix(prefix): link.shape for link in links}

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for link in links:
            yield link.theirs.removeprefix(prefix), link.join([weights.read(each) for each in link.ours])

    safetensors_file.write_sharded(folder, shapes, tensors(), max_shard_bytes)
    ids = special_ids(model, weights.tokenizer.vocabulary if weights.tokenizer else None)
    text = json.dumps(config_json(model, name) | ids, indent=2)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    if weights.tokenizer:
        tokenizer.write(folder, weights.tokenizer)
    written = {each for link in links for each in link.ours}
    return [each for each in weights.shapes if each not in written]


def _architecture(weights: Weights, asked: str | None) -> tuple[str, Sequence[str]]:
    known = _ARCHITECTURES[kind(weights.model)]
    ending = ARCHITECTURES.get(weights.model.task)
    if ending:
        known = {name: heads for name, heads in known.items() if name.endswith(ending)}
    else:
        known = {name: heads for name, heads in known.items() if "classifier" not in heads}
    if asked and asked not in known:
        raise FormatError(f"--architecture={asked}: expected one of {', '.join(known)}")
    has = {part_of(name) for name in weights.shapes}
    if weights.model.task == "embedding":  # BertModel with add_pooling_layer=False
        return next(iter(known)), ()
    for name, heads in known.items():
        if name == asked or (not asked and has.issuperset(heads)):
            if lacking := [head for head in heads if head not in has]:
                raise FormatError(
                    f"{weights.path}: it has no {' and no '.join(lacking)}, which {name} needs; --init_missing "
                    "adds what is missing, with initial values"
                )
            return name, heads
    raise FormatError(
        f"{weights.path}: it has no heads that one of {', '.join(known)} needs; name one, with --init_missing"
    )
