"""The config.json of transformers: the sizes and parts of a model under its names, one table a model type."""

from collections.abc import Sequence
from typing import Any

from tftrain.config.families import FAMILIES
from tftrain.config.train import ModelConfig
from tftrain.formats import hugging_face_rope
from tftrain.formats.errors import FormatError
from tftrain.input.vocabulary import Vocabulary

_MAX_FIELD = 1 << 24

# What transformers calls the forms of the GeLU.
_GELU_FORMS = {
    "gelu": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
    "gelu_python": "erf",
}
# For each model_type our fields, each with theirs and the value that it has where a config.json leaves it out: the
# defaults of BertConfig, MegatronBertConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config and ModernBertConfig
# in transformers. None: the default of our own flag.
_BERT = {
    "vocab_size": ("vocab_size", 30522),
    "hidden_size": ("hidden_size", 768),
    "num_hidden_layers": ("num_hidden_layers", 12),
    "num_attention_heads": ("num_attention_heads", 12),
    "intermediate_size": ("intermediate_size", 3072),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 2),
    "hidden_dropout_prob": ("hidden_dropout_prob", 0.1),
    "attention_probs_dropout_prob": ("attention_probs_dropout_prob", 0.1),
    "initializer_range": ("initializer_range", 0.02),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "gelu_form": ("hidden_act", "gelu"),
}
_LLAMA = {
    "vocab_size": ("vocab_size", 32000),
    "hidden_size": ("hidden_size", 4096),
    "num_hidden_layers": ("num_hidden_layers", 32),
    "num_attention_heads": ("num_attention_heads", 32),
    "attention_head_size": ("head_dim", None),
    "num_key_value_heads": ("num_key_value_heads", None),
    "intermediate_size": ("intermediate_size", 11008),
    "max_position_embeddings": ("max_position_embeddings", 2048),
    "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    "initializer_range": ("initializer_range", 0.02),
    "layer_norm_epsilon": ("rms_norm_eps", 1e-6),
    "tie_output": ("tie_word_embeddings", False),
}
_QWEN2 = {
    **_LLAMA,
    "vocab_size": ("vocab_size", 151936),
    "intermediate_size": ("intermediate_size", 22016),
    "num_key_value_heads": ("num_key_value_heads", 32),
    "max_position_embeddings": ("max_position_embeddings", 32768),
}
FIELDS = {
    "bert": _BERT,
    "megatron-bert": {
        **_BERT,
        "vocab_size": ("vocab_size", 29056),
        "hidden_size": ("hidden_size", 1024),
        "num_hidden_layers": ("num_hidden_layers", 24),
        "num_attention_heads": ("num_attention_heads", 16),
        "intermediate_size": ("intermediate_size", 4096),
    },
    "gpt2": {
        "vocab_size": ("vocab_size", 50257),
        "hidden_size": ("n_embd", 768),
        "num_hidden_layers": ("n_layer", 12),
        "num_attention_heads": ("n_head", 12),
        "intermediate_size": ("n_inner", None),
        "max_position_embeddings": ("n_positions", 1024),
        "hidden_dropout_prob": ("resid_pdrop", 0.1),
        "attention_probs_dropout_prob": ("attn_pdrop", 0.1),
        "initializer_range": ("initializer_range", 0.02),
        "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
        "gelu_form": ("activation_function", "gelu_new"),
    },
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "attention_head_size": ("head_dim", 128)},
    "modernbert": {
        "vocab_size": ("vocab_size", 50368),
        "hidden_size": ("hidden_size", 768),
        "num_hidden_layers": ("num_hidden_layers", 22),
        "num_attention_heads": ("num_attention_heads", 12),
        "intermediate_size": ("intermediate_size", 1152),
        "max_position_embeddings": ("max_position_embeddings", 8192),
        "hidden_dropout_prob": ("embedding_dropout", 0.0),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
        "initializer_range": ("initializer_range", 0.02),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "gelu_form": ("hidden_activation", "gelu"),
        "local_attention": ("local_attention", 128),
        "global_attn_every": ("global_attn_every_n_layers", 3),
    },
}
# The flags that are the same in every model of a type.
_FLAGS = {
    "bert": {"model_family": "bert", "norm_position": "post"},
    "megatron-bert": {"model_family": "bert", "norm_position": "pre"},
    "gpt2": {"model_family": "gpt", "norm_position": "pre"},
    "llama": {"model_family": "llama", **FAMILIES["llama"].defaults},
    "qwen2": {"model_family": "llama", **FAMILIES["llama"].defaults, "bias": "query_key_value"},
    "qwen3": {"model_family": "llama", **FAMILIES["llama"].defaults, "query_key_norm": True},
    "modernbert": {"model_family": "modernbert", **FAMILIES["modernbert"].defaults},
}
# The classes for fine-tuned tasks: the ends of their names.
ARCHITECTURES = {
    "classification": "ForSequenceClassification",
    "multi_label": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "embedding": "Model",
}
_PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
# Settings that this project has with one value only, which is transformers' default as well.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "chunk_size_feed_forward": 0,
}
_TIED = {"tie_word_embeddings": True}
_SILU = {"hidden_act": "silu", "pretraining_tp": 1, "use_sliding_window": False}
_MODERN = {
    **_TIED,
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
    "decoder_bias": True,
    "mlp_dropout": 0.0,
}
_FIXED_OF_KIND = {
    **dict.fromkeys(("bert", "megatron-bert", "gpt2"), _TIED),
    **dict.fromkeys(("llama", "qwen2", "qwen3"), _SILU),
    "modernbert": _MODERN,
}


def model_config(config: dict[str, Any], path: str) -> ModelConfig:
    """Returns the model that a config.json describes.

    Raises:
        FormatError: it is not a model that this project has; the message names the field.
    """
    kind = config.get("model_type")
    if kind not in FIELDS:
        raise FormatError(f"{path}: model_type is {kind!r}; expected one of {', '.join(FIELDS)}")
    for name, value in {**_FIXED, **_FIXED_OF_KIND[kind]}.items():
        if config.get(name, value) != value:
            raise FormatError(f"{path}: {name} is {config[name]!r}; this project has only {value!r}")
    values = {}
    for ours, (theirs, default) in FIELDS[kind].items():
        value = config.get(theirs, default)
        if ours == "gelu_form":
            if value not in _GELU_FORMS:
                raise FormatError(f"{path}: {theirs} is {value!r}; expected one of {', '.join(_GELU_FORMS)}")
            values[ours] = _GELU_FORMS[value]
        elif isinstance(getattr(ModelConfig, ours), bool):
            if not isinstance(value, bool):
                raise FormatError(f"{path}: {theirs} is {value!r}; expected true or false")
            values[ours] = value
        elif value is not None or default is not None:
            values[ours] = _number(theirs, value, type(getattr(ModelConfig, ours)), path)
    if "attention_head_size" not in values and values["hidden_size"] % values["num_attention_heads"]:
        width, heads = (f"{FIELDS[kind][name][0]}={values[name]}" for name in ("hidden_size", "num_attention_heads"))
        raise FormatError(f"{path}: {width} is not a multiple of {heads}")
    if "num_key_value_heads" in FIELDS[kind]:
        values |= _from_llama(config, values, path)
    if kind == "modernbert":
        values |= _from_modernbert(config, values, path)
    return ModelConfig(**{**_FLAGS[kind], **values, **_task(config, path)})


def _from_llama(config: dict[str, Any], values: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the flags of a Llama's heads, biases and positions."""
    heads, found = values["num_attention_heads"], hugging_face_rope.flags(config, path)
    shared = values.get("num_key_value_heads", heads)
    if heads % shared:
        raise FormatError(f"{path}: num_attention_heads={heads} is not a multiple of num_key_value_heads={shared}")
    biases = {config.get("attention_bias", False), config.get("mlp_bias", False)}
    if len(biases) > 1:
        raise FormatError(f"{path}: attention_bias and mlp_bias differ; this project has both or none")
    found["num_key_value_heads"] = None if shared == heads else shared
    if values.get("attention_head_size", 0) * heads == values["hidden_size"]:
        found["attention_head_size"] = None
    return {**found, "bias": "all"} if True in biases else found


def _from_modernbert(config: dict[str, Any], values: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the flags of a ModernBERT's local and global layers."""
    activation, act = config.get("classifier_activation", "gelu"), config.get("hidden_activation", "gelu")
    if activation != act:
        raise FormatError(
            f"{path}: classifier_activation is {activation!r}; this project has only that of hidden_activation"
        )
    pooling = config.get("classifier_pooling", "cls")
    if pooling != "cls" and _task(config, path).get("task") in _PROBLEM_TYPES:
        raise FormatError(f"{path}: classifier_pooling is {pooling!r}; this project has only 'cls'")
    types, every = config.get("layer_types"), values["global_attn_every"]
    if types is not None:
        is_global = [each == "full_attention" for each in types] if isinstance(types, list) else []
        found = next((index for index, each in enumerate(is_global) if index and each), len(is_global))
        every = every if "global_attn_every_n_layers" in config else max(1, found)
        if is_global != [layer % every == 0 for layer in range(values["num_hidden_layers"])]:
            raise FormatError(
                f"{path}: layer_types is {types!r}; expected full_attention every {every} layers, and sliding_attention"
            )
    return {"global_attn_every": every, **hugging_face_rope.local_and_global(config, path)}


def _task(config: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the task and the labels of a model that was fine-tuned; nothing for another."""
    names = config.get("architectures")
    architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    if architecture.endswith("ForQuestionAnswering"):
        return {"task": "question_answering"}
    if not architecture.endswith(("ForSequenceClassification", "ForTokenClassification")):
        return {}
    labels = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    if not isinstance(labels, dict) or sorted(labels) != sorted(map(str, range(len(labels)))):
        raise FormatError(f"{path}: id2label is not an object with the keys 0 to the number of labels")
    found = tuple(str(labels[str(number)]) for number in range(len(labels)))
    if architecture.endswith("ForTokenClassification"):
        return {"task": "token_classification", "labels": found}
    by_type = {name: task for task, name in _PROBLEM_TYPES.items()}
    default = "regression" if len(found) == 1 else "classification"  # as in transformers
    task = by_type.get(config.get("problem_type"), default)
    if task == "regression" and len(found) != 1:
        raise FormatError(f"{path}: a regression with {len(found)} outputs; this project has only one")
    return {"task": task, "labels": () if task == "regression" else found}


def _number(name: str, value: Any, kind: type, path: str) -> int | float:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and (is_whole or isinstance(value, float)) and 0 <= value < 1:
        return float(value)
    if kind is not float and is_whole and 0 < value <= _MAX_FIELD:
        return value
    raise FormatError(
        f"{path}: {name} is {value!r}; expected a {'number below 1' if kind is float else 'whole number'}"
    )


def require(model: ModelConfig, library: str, norm_positions: Sequence[str]) -> None:
    """Raises a FormatError if a model has a part that the models of another library do not have.

    Args:
        model: the model.
        library: for the message.
        norm_positions: where the library's models of this family have their norms.
    """
    if library != "transformers" and model.model_family != "bert":
        raise FormatError(
            f"--model_family={model.model_family}: the format of {library} is that of its BERT; write this model with "
            "--to=hf:FOLDER"
        )
    position = "pre" if model.is_pre_norm else "post"
    if position not in norm_positions:
        raise FormatError(f"--norm_position={position}: the BERT of {library} has only {norm_positions[0]}")
    for name in ("activation", "use_bias_in_keys", "position_embedding"):
        value, only = getattr(model, name), model.family.defaults.get(name, getattr(ModelConfig, name))
        if value != only:
            raise FormatError(f"--{name}={str(value).lower()}: the models of {library} have only {str(only).lower()}")
    if model.query_key_norm and model.bias != "none":
        raise FormatError(f"--bias={model.bias}: the models of {library} with --query_key_norm have only none")


def kind(model: ModelConfig) -> str:
    """Returns transformers' model_type."""
    return "qwen3" if model.query_key_norm else _KINDS[model.model_family, model.is_pre_norm, model.bias]


_KINDS = {
    ("bert", False, "all"): "bert",
    ("bert", True, "all"): "megatron-bert",
    ("gpt", True, "all"): "gpt2",
    ("llama", True, "none"): "llama",
    ("llama", True, "all"): "llama",
    ("llama", True, "query_key_value"): "qwen2",
    ("modernbert", True, "none"): "modernbert",
}


def _to_bert(model: ModelConfig) -> dict[str, Any]:
    return {"hidden_act": {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[model.gelu_form], "pad_token_id": 0}


def _to_gpt(model: ModelConfig) -> dict[str, Any]:
    act = {"erf": "gelu", "tanh": "gelu_new"}[model.gelu_form]
    return {"activation_function": act, "embd_pdrop": model.hidden_dropout_prob}


def _to_llama(model: ModelConfig) -> dict[str, Any]:
    biased = model.bias == "all"
    return {
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        **({"attention_bias": biased, "mlp_bias": biased} if kind(model) == "llama" else {}),
        "bos_token_id": None,
        "eos_token_id": None,
        **hugging_face_rope.fields(model),
    }


def _to_modernbert(model: ModelConfig) -> dict[str, Any]:
    act = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[model.gelu_form]
    kinds = ("full_attention", "sliding_attention")
    bases = dict(zip(kinds, (model.rope_theta, model.local_rope_theta), strict=True))
    return {
        "hidden_activation": act,
        "classifier_activation": act,
        "classifier_pooling": "cls",
        **_MODERN,
        "layer_types": [kinds[layer % model.global_attn_every > 0] for layer in range(model.num_hidden_layers)],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "global_rope_theta": model.rope_theta,
        "local_rope_theta": model.local_rope_theta,
    }


def special_ids(model: ModelConfig, vocabulary: Vocabulary | None) -> dict[str, int | None]:
    """Returns the ids of special tokens where transformers' defaults are those of one vocabulary: a ModernBERT's."""
    if model.model_family != "modernbert":
        return {}
    tokens = {"pad": "[PAD]", "cls": "[CLS]", "bos": "[CLS]", "sep": "[SEP]", "eos": "[SEP]"}
    return {f"{name}_token_id": vocabulary.id(token) if vocabulary else None for name, token in tokens.items()}


# What config.json has beside the fields of the table.
_MORE = {"bert": _to_bert, "gpt": _to_gpt, "llama": _to_llama, "modernbert": _to_modernbert}


def config_json(model: ModelConfig, architecture: str) -> dict[str, Any]:
    """Returns the content of config.json."""
    fields = FIELDS[kind(model)]
    values = {theirs: getattr(model, ours) for ours, (theirs, _) in fields.items()}
    values[fields["intermediate_size"][0]] = model.feed_forward_size
    values |= _MORE[model.model_family](model)
    if labels := model.labels or (("LABEL_0",) if model.task == "regression" else ()):
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
    if problem_type := _PROBLEM_TYPES.get(model.task):
        values["problem_type"] = problem_type
    return {
        "architectures": [architecture],
        "model_type": kind(model),
        "dtype": "float32",
        "torch_dtype": "float32",
        **values,
    }
