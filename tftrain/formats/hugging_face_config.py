"""The config.json of transformers: read as the model that it describes, and written."""

from collections.abc import Sequence
from typing import Any

from tftrain.config.train import ModelConfig
from tftrain.formats import hugging_face_rope
from tftrain.formats.errors import FormatError
from tftrain.formats.hugging_face_tables import (
    FIELDS,
    FIXED,
    FIXED_OF_KIND,
    FLAGS,
    GELU_FORMS,
    MODERN,
    PROBLEM_TYPES,
    kind,
)
from tftrain.input.tokenizer_model import Tokenizer

_MAX_FIELD = 1 << 24


def model_config(config: dict[str, Any], path: str) -> ModelConfig:
    """Returns the model that a config.json describes.

    Raises:
        FormatError: it is not a model that this project has; the message names the field.
    """
    kind = config.get("model_type")
    if kind not in FIELDS:
        raise FormatError(f"{path}: model_type is {kind!r}; expected one of {', '.join(FIELDS)}")
    for name, value in {**FIXED, **FIXED_OF_KIND[kind]}.items():
        if config.get(name, value) != value:
            raise FormatError(f"{path}: {name} is {config[name]!r}; this project has only {value!r}")
    values = {}
    for ours, (theirs, default) in FIELDS[kind].items():
        value = config.get(theirs, default)
        if ours == "gelu_form":
            if value not in GELU_FORMS:
                raise FormatError(f"{path}: {theirs} is {value!r}; expected one of {', '.join(GELU_FORMS)}")
            values[ours] = GELU_FORMS[value]
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
    return ModelConfig(**{**FLAGS[kind], **values, **_task(config, path)})


def _from_llama(config: dict[str, Any], values: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the flags of a Llama's heads, biases and positions."""
    heads, values_of_rope = values["num_attention_heads"], hugging_face_rope.flags(config, path)
    shared = values.get("num_key_value_heads", heads)
    if heads % shared:
        raise FormatError(f"{path}: num_attention_heads={heads} is not a multiple of num_key_value_heads={shared}")
    biases = {config.get("attention_bias", False), config.get("mlp_bias", False)}
    if len(biases) > 1:
        raise FormatError(f"{path}: attention_bias and mlp_bias differ; this project has both or none")
    values_of_rope["num_key_value_heads"] = None if shared == heads else shared
    if values.get("attention_head_size", 0) * heads == values["hidden_size"]:
        values_of_rope["attention_head_size"] = None
    return {**values_of_rope, "bias": "all"} if True in biases else values_of_rope


def _from_modernbert(config: dict[str, Any], values: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the flags of a ModernBERT's local and global layers."""
    activation, act = config.get("classifier_activation", "gelu"), config.get("hidden_activation", "gelu")
    if activation != act:
        raise FormatError(
            f"{path}: classifier_activation is {activation!r}; this project has only that of hidden_activation"
        )
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise FormatError(f"{path}: classifier_pooling is {pooling!r}; expected 'cls' or 'mean'")
    types, every = config.get("layer_types"), values["global_attn_every"]
    if types is not None:
        is_global = [each == "full_attention" for each in types] if isinstance(types, list) else []
        first_global = next((index for index, each in enumerate(is_global) if index and each), len(is_global))
        every = every if "global_attn_every_n_layers" in config else max(1, first_global)
        if is_global != [layer % every == 0 for layer in range(values["num_hidden_layers"])]:
            raise FormatError(
                f"{path}: layer_types is {types!r}; expected full_attention every {every} layers, and sliding_attention"
            )
    return {
        "global_attn_every": every,
        "classifier_pooling": pooling,
        **hugging_face_rope.local_and_global(config, path),
    }


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
    label_names = tuple(str(labels[str(number)]) for number in range(len(labels)))
    if architecture.endswith("ForTokenClassification"):
        return {"task": "token_classification", "labels": label_names}
    by_type = {name: task for task, name in PROBLEM_TYPES.items()}
    default = "regression" if len(label_names) == 1 else "classification"  # as in transformers
    task = by_type.get(config.get("problem_type"), default)
    if task == "regression" and len(label_names) != 1:
        raise FormatError(f"{path}: a regression with {len(label_names)} outputs; this project has only one")
    return {"task": task, "labels": () if task == "regression" else label_names}


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

    Their norms are in one of `norm_positions`.
    """
    if library != "transformers" and model.model_family != "bert":
        raise FormatError(
            f"--to: the model is a {model.model_family}, the format of {library} has only BERT; expected --to=hf:FOLDER"
        )
    position = "pre" if model.is_pre_norm else "post"
    if position not in norm_positions:
        raise FormatError(
            f"--to: the model's norm_position is {position}, the BERT of {library} has only {norm_positions[0]}"
        )
    for name in ("activation", "use_bias_in_keys", "position_embedding"):
        value, only = getattr(model, name), model.family.defaults.get(name, getattr(ModelConfig, name))
        if value != only:
            has = f"--to: the model's {name} is {str(value).lower()}"
            raise FormatError(f"{has}, the models of {library} have only {str(only).lower()}")
    if model.query_key_norm and model.bias != "none":
        raise FormatError(f"--to: the model's bias is {model.bias}, those of {library} with query_key_norm have none")


def _more(model: ModelConfig) -> dict[str, Any]:
    """Returns what config.json has beside the fields of the table, by family."""
    if model.model_family == "bert":
        return {"pad_token_id": 0}
    if model.model_family == "gpt":
        return {"embd_pdrop": model.hidden_dropout_prob}
    if model.model_family == "llama":
        biases = dict.fromkeys(("attention_bias", "mlp_bias"), model.bias == "all") if kind(model) == "llama" else {}
        no_ids = {"bos_token_id": None, "eos_token_id": None}
        return {"hidden_act": "silu", **biases, **no_ids, **hugging_face_rope.fields(model)}
    kinds = ("full_attention", "sliding_attention")
    bases = dict(zip(kinds, (model.rope_theta, model.local_rope_theta), strict=True))
    return {
        "classifier_activation": _gelu(model),
        "classifier_pooling": model.classifier_pooling,
        **MODERN,
        "layer_types": [kinds[layer % model.global_attn_every > 0] for layer in range(model.num_hidden_layers)],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "global_rope_theta": model.rope_theta,
        "local_rope_theta": model.local_rope_theta,
    }


def _gelu(model: ModelConfig) -> str:
    return "gelu" if model.gelu_form == "erf" else "gelu_new" if model.is_decoder else "gelu_pytorch_tanh"


def special_ids(model: ModelConfig, tokenizer: Tokenizer | None) -> dict[str, int | None]:
    """Returns the ids of a decoder's first and end token, and those for which transformers has no right default."""
    vocabulary = tokenizer and tokenizer.vocabulary
    if model.is_decoder:
        named = tokenizer.named_tokens if tokenizer else {}
        return {
            f"{name}_id": vocabulary.id(token) for name, token in named.items() if name in ("bos_token", "eos_token")
        }
    if model.model_family != "modernbert":
        return {}
    tokens = {"pad": "[PAD]", "cls": "[CLS]", "bos": "[CLS]", "sep": "[SEP]", "eos": "[SEP]"}
    return {f"{name}_token_id": vocabulary.id(token) if vocabulary else None for name, token in tokens.items()}


def config_json(model: ModelConfig, architecture: str) -> dict[str, Any]:
    """Returns the content of config.json."""
    computed = {
        "intermediate_size": model.feed_forward_size,
        "attention_head_size": model.head_size,
        "num_key_value_heads": model.key_value_heads,
        "gelu_form": _gelu(model),
    }
    fields = FIELDS[kind(model)].items()
    values = {theirs: computed.get(ours, getattr(model, ours)) for ours, (theirs, _) in fields} | _more(model)
    if labels := model.labels or (("LABEL_0",) if model.task == "regression" else ()):
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
    if problem_type := PROBLEM_TYPES.get(model.task):
        values["problem_type"] = problem_type
    dtypes = {"dtype": "float32", "torch_dtype": "float32"}
    return {"architectures": [architecture], "model_type": kind(model), **dtypes, **values}
