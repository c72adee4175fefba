"""The config.json of transformers: read as the model that it describes, and written."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tftrain.config.fields import field_problems
from tftrain.config.model import ModelConfig
from tftrain.files.errors import FormatError
from tftrain.formats.hugging_face_gaps import WITH_CLASSES, architecture_of
from tftrain.formats.hugging_face_tables import KINDS, kind_of
from tftrain.tokenizer.tokenizer_model import Tokenizer

# What transformers calls the forms of the GeLU.
_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate")
_GELUS = {"gelu": "erf", "gelu_python": "erf", **dict.fromkeys(_TANH, "tanh")}
_PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


def model_config(config: dict[str, Any], path: str) -> ModelConfig:
    """Returns the model that a config.json describes, as `hugging_face_gaps.described` completes it.

    Raises:
        FormatError: it is not a model that this project has; the message names the field.
    """
    model_type = config.get("model_type")
    if model_type not in list(KINDS):  # A file may have a value that is no key.
        raise FormatError(f"{path}: model_type is {model_type!r}; expected one of {', '.join(KINDS)}")
    kind = KINDS[model_type]
    for name, value in kind.fixed.items():
        if config.get(name) not in (None, value):
            raise FormatError(f"{path}: {name} is {config[name]!r}; this project has only {value!r}")
    values = {}
    for ours, (theirs, default) in kind.fields.items():
        value = config.get(theirs, default)
        if ours == "gelu_form":
            if value not in list(_GELUS):
                raise FormatError(f"{path}: {theirs} is {value!r}; expected one of {', '.join(_GELUS)}")
            values[ours] = _GELUS[value]
        elif isinstance(getattr(ModelConfig, ours), bool):
            if not isinstance(value, bool):
                raise FormatError(f"{path}: {theirs} is {value!r}; expected true or false")
            values[ours] = value
        elif value is not None or (default is not None and ours != "num_key_value_heads"):
            values[ours] = _number(theirs, value, type(getattr(ModelConfig, ours)), path)
    if "attention_head_size" not in values and values["hidden_size"] % values["num_attention_heads"]:
        width, heads = (f"{kind.fields[name][0]}={values[name]}" for name in ("hidden_size", "num_attention_heads"))
        raise FormatError(f"{path}: {width} is not a multiple of {heads}")
    values |= kind.read(config, values, path)
    model = ModelConfig(model_family=kind.family).with_family_defaults(())
    model = replace(model, **{**kind.flags, **values, **_task(config, path)})
    if problems := field_problems(model):
        raise FormatError(f"{path}: {problems[0]}")
    return model


def _task(config: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the task and the labels of a model that was fine-tuned; nothing for another."""
    architecture = architecture_of(config)
    if architecture.endswith("ForQuestionAnswering"):
        return {"task": "question_answering"}
    if not architecture.endswith(WITH_CLASSES):
        return {}
    label_names = tuple(config["id2label"].values())  # As `described` completes it.
    if architecture.endswith("ForTokenClassification"):
        return {"task": "token_classification", "labels": label_names}
    by_type = {name: task for task, name in _PROBLEM_TYPES.items()}
    default = "regression" if len(label_names) == 1 else "classification"  # as in transformers
    task = by_type.get(str(config.get("problem_type")), default)
    if task == "regression" and len(label_names) != 1:
        raise FormatError(f"{path}: a regression with {len(label_names)} outputs; this project has only one")
    return {"task": task, "labels": () if task == "regression" else label_names}


def _number(name: str, value: Any, kind: type, path: str) -> int | float:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and (is_whole or isinstance(value, float)) and 0 <= value < 1:
        return float(value)
    if kind is not float and is_whole and value > 0:
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
        has = f"--to: the model's norm_position is {position}"
        raise FormatError(f"{has}, the {model.model_family} of {library} has only {norm_positions[0]}")
    for name in ("activation", "use_bias_in_keys", "position_embedding"):
        value, only = getattr(model, name), model.family.defaults.get(name, getattr(ModelConfig, name))
        if value != only:
            has = f"--to: the model's {name} is {str(value).lower()}"
            raise FormatError(f"{has}, the models of {library} have only {str(only).lower()}")
    if model.query_key_norm and model.bias != "none":
        raise FormatError(f"--to: the model's bias is {model.bias}, those of {library} with query_key_norm have none")


def special_ids(model: ModelConfig, tokenizer: Tokenizer | None) -> dict[str, int | list[int] | None]:
    """Returns the ids of a decoder's first and end tokens, and those for which transformers has no right default."""
    vocabulary = tokenizer and tokenizer.vocabulary
    if model.is_decoder:
        named = tokenizer.named_tokens if tokenizer else {}
        ids = {
            f"{name}_id": vocabulary.id(token) for name, token in named.items() if name in ("bos_token", "eos_token")
        }
        if vocabulary and model.task == "completion" and len(set(tokenizer.end_ids)) > 1:
            ids["eos_token_id"] = list(tokenizer.end_ids)  # It has learned the first one after completions.
        return ids
    tokens = kind_of(model).special_tokens
    return {f"{name}_token_id": vocabulary.id(token) if vocabulary else None for name, token in tokens.items()}


def config_json(model: ModelConfig, architecture: str) -> dict[str, Any]:
    """Returns the content of config.json."""
    kind = kind_of(model)
    computed = {
        "intermediate_size": model.feed_forward_size,
        "attention_head_size": model.head_size,
        "num_key_value_heads": model.key_value_heads,
        "gelu_form": "gelu" if model.gelu_form == "erf" else kind.gelu_tanh,
    }
    values = {theirs: computed.get(ours, getattr(model, ours)) for ours, (theirs, _) in kind.fields.items()}
    values |= kind.write(model, values)
    if labels := model.labels or (("LABEL_0",) if model.task == "regression" else ()):
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
    if problem_type := _PROBLEM_TYPES.get(model.task):
        values["problem_type"] = problem_type
    dtypes = {"dtype": "float32", "torch_dtype": "float32"}
    return {"architectures": [architecture], "model_type": kind.model_type, **dtypes, **values}
