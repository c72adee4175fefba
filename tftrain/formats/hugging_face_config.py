"""The config.json of transformers: read as the model that it describes, and written.

What it leaves out follows from the tensors beside it, as far as they say it.
"""

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tftrain.architecture.describe import is_pre_norm
from tftrain.config.fields import field_problems
from tftrain.config.model import ModelConfig
from tftrain.families import bert
from tftrain.families.family import ModelType
from tftrain.files.errors import FormatError
from tftrain.files.strict_json import shown
from tftrain.formats.hugging_face_names import TYPES, Shapes, own_names, type_by_tensors, type_of
from tftrain.tokenizer.roles import Roles
from tftrain.tokenizer.tokenizer_model import Tokenizer

# What transformers calls the forms of the GeLU.
_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate")
_GELUS = {"gelu": "erf", "gelu_python": "erf", **dict.fromkeys(_TANH, "tanh")}
_PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
# The class of a library without its head.
_CLASS = re.compile(r"(?:TF|Flax)?(.+?)(?:For[A-Z].*|LMHeadModel|DoubleHeadsModel|Model|PreTrainedModel)$")
_BIO = re.compile(r"'[BIESLU]-.")  # in a dictionary as Python shows it
_WITH_CLASSES = ("ForSequenceClassification", "ForTokenClassification")
_LABEL_FIELDS = {"id2label": dict, "label2id": dict, "num_labels": int}


class CompletedConfig(NamedTuple):
    """A config.json with what its tensors say."""

    config: dict[str, Any]  # its fields
    names: dict[str, str]  # the tensors' names in the files, by the names that the type's whole model has for them
    notes: tuple[str, ...]  # what was concluded, a line each


def completed(config: dict[str, Any], path: str, shapes: Shapes) -> CompletedConfig:
    """Completes a config.json, given the shapes of the tensors beside it by name, as far as they are known."""
    notes, config, stem = [], dict(config), _CLASS.match(_class_of(config))
    if config.get("model_type") is None:
        by_class = (each for _, each in TYPES.values() if stem and _stem(each) == stem[1])
        if guess := next(by_class, None) if _class_of(config) else type_by_tensors(shapes):
            config["model_type"] = guess.name
            notes.append(f"{path} has no model_type; by the tensors and their names it is {guess.name}")
    _, own = TYPES.get(str(config.get("model_type")), (None, None))
    names = own_names(shapes, own, path) if own else {}
    shapes = {name: shapes[theirs] for name, theirs in names.items()}
    if own and not config.get("architectures") and (name := _class_by_head(own, config, shapes)):
        config["architectures"] = [name]
        notes.append(f"{path} has no architectures; by the tensors and the classes it is {name}")
    if _class_of(config).endswith(_WITH_CLASSES):
        heads = ["classifier.weight", *([f"{own.sample_classifier}.weight"] if own else [])]
        rows = next((shapes[each][0] for each in heads if shapes.get(each)), None)
        labels, label_notes = _labels(config, path, rows)
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        notes += label_notes
    if own and "tie_output" in own.fields and "tie_word_embeddings" not in config and shapes:
        # A class for texts has no output layer, tied or not.
        config["tie_word_embeddings"] = not {"lm_head.weight", "score.weight"} & shapes.keys()
    return CompletedConfig(config, names, tuple(notes))


def _class_of(config: Mapping[str, Any]) -> str:
    """Returns the class that a config.json names first; "" if it names none."""
    names = config.get("architectures")
    names = [names] if isinstance(names, str) else names
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _stem(own: ModelType) -> str:
    return _CLASS.match(next(iter(own.architectures)))[1]


def _nearest(config: Mapping[str, Any]) -> str:
    name, known = _class_of(config), [name for _, own in TYPES.values() for name in own.architectures]
    return f"; the known class nearest to {name} is {difflib.get_close_matches(name, known, 1, 0)[0]}" if name else ""


def check_class(config: Mapping[str, Any], own: ModelType, lost: Sequence[str], path: str) -> None:
    """Raises a FormatError if a config.json names a class of its type with an output head that this project lacks.

    The tensors `lost` are those that the model has no part for.
    """
    name = _class_of(config)
    stem, heads = _CLASS.match(name), [each for each in lost if not each.startswith(own.prefix)]
    if heads and stem and stem[1] == _stem(own) and not name.endswith(tuple(own.architectures)):
        base = next((each for each in own.architectures if each.endswith("Model")), next(iter(own.architectures)))
        raise FormatError(
            f"{path}: architectures names {name}, a class with an output head ({heads[0]}) that this project lacks"
            f"{_nearest(config)}; write {base} there to read the model without that head"
        )


def _class_by_head(own: ModelType, config: Mapping[str, Any], shapes: Shapes) -> str | None:
    """Returns the class of a fine-tuned model whose config.json names none; None if it has no output head of one."""
    heads, ending = {name.partition(".")[0] for name in shapes}, ""
    pooler = own.scopes.get("classifier/dense", own.scopes.get("pooler"))
    if own.answers != "classifier" and own.answers in heads:
        ending = "ForQuestionAnswering"
    elif "classifier" in heads:
        is_of_words = _BIO.search(f"{config.get('id2label')} {config.get('label2id')}")
        is_of_words = is_of_words or (pooler and not any(name.startswith(pooler) for name in shapes))
        ending = _WITH_CLASSES[bool(is_of_words)]
    return name if (name := _stem(own) + ending) in own.architectures and ending else None


def _labels(config: Mapping[str, Any], path: str, rows: int | None) -> tuple[list[str], list[str]]:
    """Returns the names of a model's classes, each once, and what was concluded; `rows` is their number if known."""
    by_number, by_name, count = given = [config.get(field) or kind() for field, kind in _LABEL_FIELDS.items()]
    if list(map(type, given)) != list(_LABEL_FIELDS.values()):
        raise FormatError(f"{path}: id2label, label2id or num_labels is damaged; expected two objects and a number")
    names, notes = {}, []
    for number, name in [*((number, name) for name, number in by_name.items()), *by_number.items()]:
        if not (str(number).isdecimal() and isinstance(name, str | int | float | None)):
            expected = "expected a number and a name"
            raise FormatError(f"{path}: id2label or label2id has {shown((number, name))}; {expected}")
        names |= {} if name is None else {int(number): str(name)}
    count = rows or max(count, len(by_number), len(by_name)) or 2
    if beyond := [key for key in by_number if int(key) >= count]:
        raise FormatError(f"{path}: id2label has the key {beyond[0]}; expected 0 to {count - 1} for {count} classes")
    labels = [names.get(number, f"LABEL_{number}") for number in range(count)]
    if by_number and (unnamed := [label for number, label in enumerate(labels) if number not in names]):
        notes.append(f"{path}: id2label does not name each of {count} classes: {', '.join(unnamed[:5])} by number")
    for number, label in enumerate(labels):
        if label in labels[:number]:
            labels[number] = next(name for n in itertools.count(number) if (name := f"{label} ({n})") not in labels)
            notes.append(f"{path}: id2label has {shown(label)} twice; class {number} is {shown(labels[number])} here")
    return labels, notes


def model_config(config: dict[str, Any], path: str) -> ModelConfig:
    """Returns the model that a `completed` config.json describes.

    Raises:
        FormatError: it is not a model that this project has; the message names the field.
    """
    try:
        model = _model(config)
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error
    if problems := field_problems(model):
        raise FormatError(f"{path}: {problems[0]}")
    return model


def _model(config: dict[str, Any]) -> ModelConfig:
    model_type = config.get("model_type")
    if model_type not in list(TYPES):  # A file may have a value that is no key.
        raise ValueError(f"model_type is {model_type!r}; expected one of {', '.join(TYPES)}{_nearest(config)}")
    family, own = TYPES[model_type]
    for name, value in own.fixed.items():
        if config.get(name) not in (None, value):
            raise ValueError(f"{name} is {config[name]!r}; this project has only {value!r}")
    values = {}
    for ours, (theirs, default) in own.fields.items():
        value = config.get(theirs, default)
        if ours == "gelu_form":
            if value not in list(_GELUS):
                raise ValueError(f"{theirs} is {value!r}; expected one of {', '.join(_GELUS)}")
            values[ours] = _GELUS[value]
        elif isinstance(getattr(ModelConfig, ours), bool):
            if not isinstance(value, bool):
                raise ValueError(f"{theirs} is {value!r}; expected true or false")
            values[ours] = value
        elif value is not None or (default is not None and ours != "num_key_value_heads"):
            values[ours] = _number(theirs, value, type(getattr(ModelConfig, ours)))
    if "attention_head_size" not in values and values["hidden_size"] % values["num_attention_heads"]:
        width, heads = (f"{own.fields[name][0]}={values[name]}" for name in ("hidden_size", "num_attention_heads"))
        raise ValueError(f"{width} is not a multiple of {heads}")
    values |= own.read(config, values)
    model = ModelConfig(model_family=family.name).with_family_defaults(())
    model = replace(model, **{**own.flags, **values, **_task(config)})
    return model if type_of(model) is own else replace(model, model_type=own.name)


def _task(config: dict[str, Any]) -> dict[str, Any]:
    name = _class_of(config)
    if name.endswith("ForQuestionAnswering"):
        return {"task": "question_answering"}
    if not name.endswith(_WITH_CLASSES):
        return {}
    labels = tuple(config["id2label"].values())
    if name.endswith("ForTokenClassification"):
        return {"task": "token_classification", "labels": labels}
    by_type = {name: task for task, name in _PROBLEM_TYPES.items()}
    default = "regression" if len(labels) == 1 else "classification"  # as in transformers
    task = by_type.get(str(config.get("problem_type")), default)
    if task == "regression" and len(labels) != 1:
        raise ValueError(f"a regression with {len(labels)} outputs; this project has only one")
    return {"task": task, "labels": () if task == "regression" else labels}


def _number(name: str, value: Any, kind: type) -> int | float:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and (is_whole or isinstance(value, float)) and 0 <= value < 1:
        return float(value)
    if kind is not float and is_whole and value > 0:
        return value
    raise ValueError(f"{name} is {value!r}; expected a {'number below 1' if kind is float else 'whole number'}")


def require(model: ModelConfig, library: str, norm_positions: Sequence[str]) -> None:
    """Raises a FormatError if a model has a part that the models of another library do not have.

    Their norms are in one of `norm_positions`.
    """
    if library != "transformers" and model.family is not bert.FAMILY:
        raise FormatError(
            f"--to: the model is a {model.model_family}, the format of {library} has only BERT; expected --to=hf:FOLDER"
        )
    position = "pre" if is_pre_norm(model) else "post"
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
    if model.is_causal:
        named = tokenizer.named_tokens if tokenizer else {}
        ids = {f"{name}_id": vocabulary.id(named[name]) for name in ("bos_token", "eos_token") if named}
        if vocabulary and model.task == "completion" and len(set(tokenizer.end_ids)) > 1:
            ids["eos_token_id"] = list(tokenizer.end_ids)  # It has learned the first one after completions.
        return ids
    roles = vocabulary.roles if vocabulary else Roles()
    ids = {f"{name}_token_id": getattr(roles, role) for name, role in type_of(model).special_tokens.items()}
    ids |= {"pad_token_id": roles.padding} if roles.padding else {}
    if model.first_row and roles.padding not in (None, model.first_row - 1):
        fault = f"its tokenizer's padding has id {roles.padding}, and its positions begin with row {model.first_row}"
        raise FormatError(f"--to: {fault}; transformers has them begin after the row of the padding's id")
    return ids


def config_json(model: ModelConfig, architecture: str) -> dict[str, Any]:
    """Returns the content of config.json."""
    own = type_of(model)
    flags = vars(model) | {
        "intermediate_size": model.feed_forward_size,
        "attention_head_size": model.head_size,
        "num_key_value_heads": model.key_value_heads,
        "gelu_form": "gelu" if model.gelu_form == "erf" else own.gelu_tanh,
    }
    values = {theirs: flags[ours] for ours, (theirs, _) in own.fields.items()}
    values |= own.write(flags, values)
    if labels := model.labels or (("LABEL_0",) if model.task == "regression" else ()):
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
    if problem_type := _PROBLEM_TYPES.get(model.task):
        values["problem_type"] = problem_type
    dtypes = {"dtype": "float32", "torch_dtype": "float32"}
    return {"architectures": [architecture], "model_type": own.name, **dtypes, **values}
