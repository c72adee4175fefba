"""What a config.json of transformers leaves out and its tensors say, and names of tensors, whoever saved them.

Wrappers of torch and training libraries put names of their own before those of a model's tensors, base models leave the
first one out, and a tied tensor may be there under one of its names only.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tftrain.files.errors import FormatError
from tftrain.files.strict_json import shown
from tftrain.formats.hugging_face_tables import KINDS, Kind
from tftrain.formats.weights import listed

_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OLD_NORM = re.compile(r"LayerNorm\.(gamma|beta)$")
# The class of a library without its head.
_CLASS = re.compile(r"(?:TF|Flax)?(.+?)(?:For[A-Z].*|LMHeadModel|DoubleHeadsModel|Model|PreTrainedModel)$")
_LAYER = re.compile(r"(.*?\.\d+)\.")
_BIO = re.compile(r"'[BIESLU]-.")  # in a dictionary as Python shows it
_CLASSES, _NAME = {"id2label": dict, "label2id": dict, "num_labels": int}, (str, int, float, type(None))
WITH_CLASSES = ("ForSequenceClassification", "ForTokenClassification")
# What tells kinds apart that have the tensors of another one too.
_TELLING = {"qwen3": [("attention/query_norm", "weight")], "qwen2": [("attention/query", "bias")]}
_NOT_IN_EACH = ("attention/query_norm", "attention/key_norm", "attention/norm")  # of scopes of a first layer

Shapes = Mapping[str, tuple[int, ...]]


class Described(NamedTuple):
    """A config.json with what its tensors say."""

    config: dict[str, Any]
    names: dict[str, str]  # of the tensors in the files, by the names that the kind's whole model has for them
    notes: tuple[str, ...]  # what was concluded, a line each


def described(config: dict[str, Any], path: str, shapes: Shapes) -> Described:
    """Completes a config.json, given the shapes of the tensors beside it by name, as far as they are known."""
    notes, config = [], dict(config)
    if config.get("model_type") is None and (found := _kind(config, shapes)):
        config["model_type"] = found.model_type
        notes.append(f"{path} has no model_type; by the tensors and their names it is {found.model_type}")
    kind = KINDS.get(str(config.get("model_type")))
    names = own_names(shapes, kind, path) if kind else {}
    own = {name: shapes[theirs] for name, theirs in names.items()}
    if kind and not config.get("architectures") and (name := _class(kind, config, own)):
        config["architectures"] = [name]
        notes.append(f"{path} has no architectures; by the tensors and the classes it is {name}")
    if architecture_of(config).endswith(WITH_CLASSES):
        labels, of_labels = _labels(config, path, next(iter(own.get("classifier.weight", ())), None))
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        notes += of_labels
    if kind and "tie_output" in kind.fields and "tie_word_embeddings" not in config and own:
        # A class for texts has no output layer, tied or not.
        config["tie_word_embeddings"] = "lm_head.weight" not in own and "score.weight" not in own
    return Described(config, names, tuple(notes))


def own_names(names: Iterable[str], kind: Kind, path: str) -> dict[str, str]:
    """Maps the names of a kind's whole model to those in a file; FormatError if there are several models in it."""
    plain, anchor = {name: _plain(name) for name in names}, _first_layer(kind, "attention/output")
    beginnings = _beginnings(plain.values(), anchor)
    if len(beginnings) > 1:
        beginnings = [each for each in beginnings if each in ("", kind.prefix)] or beginnings
    if len(beginnings) > 1:
        raise FormatError(f"{path}: {listed(beginnings)} the names of several models' tensors; expected one model")
    begin = beginnings[0] if beginnings else kind.prefix
    outer = begin.removesuffix(kind.prefix) if begin.endswith(kind.prefix) else begin[: begin[:-1].rfind(".") + 1]
    others = (*kind.scopes.values(), *kind.tied_copies, kind.answers)
    heads = tuple(f"{each.partition('.')[0]}." for each in others if not each.startswith(kind.prefix))

    def own(name: str) -> str:
        if name.startswith(begin) and not (begin == "" and name.startswith(heads)):
            return kind.prefix + name.removeprefix(begin)
        return name.removeprefix(outer)

    owned = {own(name): theirs for theirs, name in plain.items()}
    if len(owned) < len(plain):
        twice = set(plain) - set(owned.values())
        raise FormatError(f"{path}: {listed(twice)} there twice, with and without the name of a wrapper; expected one")
    copies = {name: owned[copy] for copy, name in kind.tied_copies.items() if copy in owned and name not in owned}
    return owned | copies


def left_out(names: Iterable[str], used: Iterable[str], path: str) -> list[str]:
    """Returns the names of tensors that a model does not have, sorted: those of other heads and of further layers.

    Raises:
        FormatError: one is of a part of the `used` tensors, so it would change what that computes.
    """
    parts, names = tuple({f"{_part(name)}." for name in used}), sorted(names)
    if unknown := [name for name in names if name.startswith(parts)]:
        raise FormatError(f"{path}: {listed(unknown)} unknown: not a tensor of this model")
    return names


def _part(name: str) -> str:
    """Returns the layer of a tensor, or the first two parts of a longer name."""
    layer = _LAYER.match(name)
    return layer[1] if layer else ".".join(name.split(".")[:-1][:2])


def _plain(name: str) -> str:
    norm = _OLD_NORM.search(name)
    name = name if norm is None else name[: norm.start(1)] + {"gamma": "weight", "beta": "bias"}[norm[1]]
    return _WRAPPERS.sub("", name)


def _first_layer(kind: Kind, scope: str, leaf: str = "weight") -> str:
    """Returns the name of a tensor of the first layer, without the prefix that base models lack."""
    return f"{kind.scopes[scope].format(layer=0).removeprefix(kind.prefix)}.{leaf}"


def _beginnings(names: Iterable[str], anchor: str) -> list[str]:
    return sorted({name.removesuffix(anchor) for name in names if name == anchor or name.endswith(f".{anchor}")})


def _kind(config: Mapping[str, Any], shapes: Shapes) -> Kind | None:
    """Returns the kind by the class in `architectures`, or, where there is none, by the names of the tensors."""
    if name := architecture_of(config):
        stem = _CLASS.match(name)
        return next((each for each in KINDS.values() if stem and stem[1] == _stem(each)), None)
    plain = set(map(_plain, shapes))
    # Qwen3 and Qwen2 have every tensor of a Llama, and come before it here.
    return next((kind for kind in reversed(KINDS.values()) if _fits(kind, plain)), None)


def _fits(kind: Kind, names: Collection[str]) -> bool:
    scopes = [scope for scope, theirs in kind.scopes.items() if "{layer}" in theirs and scope not in _NOT_IN_EACH]
    needed = [_first_layer(kind, scope) for scope in scopes]
    needed += [_first_layer(kind, *each) for each in _TELLING.get(kind.model_type, ())]
    refused = _first_layer(kind, "attention/output", "bias") if kind.model_type == "qwen2" else None
    begins = [each for each in _beginnings(names, needed[0]) if each == "" or each.endswith(kind.prefix)]
    return any(all(begin + each in names for each in needed) and begin + str(refused) not in names for begin in begins)


def architecture_of(config: Mapping[str, Any]) -> str:
    """Returns the class that a config.json names first; "" if it names none."""
    names = config.get("architectures")
    names = [names] if isinstance(names, str) else names
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _stem(kind: Kind) -> str:
    return _CLASS.match(next(iter(kind.architectures)))[1]


def _class(kind: Kind, config: Mapping[str, Any], own: Shapes) -> str | None:
    """Returns the class of a fine-tuned model whose config.json names none; None if it has no output head of one."""
    heads, pooler = {name.partition(".")[0] for name in own}, kind.scopes.get("pooler")
    name = None
    if kind.answers != "classifier" and kind.answers in heads:
        name = f"{_stem(kind)}ForQuestionAnswering"
    elif "classifier" in heads:
        is_of_words = _BIO.search(f"{config.get('id2label')} {config.get('label2id')}")
        is_of_words = is_of_words or (pooler and not any(name.startswith(pooler) for name in own))
        name = f"{_stem(kind)}{WITH_CLASSES[bool(is_of_words)]}"
    return name if name in kind.architectures else None


def _labels(config: Mapping[str, Any], path: str, rows: int | None) -> tuple[list[str], list[str]]:
    """Returns the names of a model's classes, each once, and what was concluded; `rows` is their number if known."""
    by_number, by_name, count = given = [config.get(field) or kind() for field, kind in _CLASSES.items()]
    if list(map(type, given)) != list(_CLASSES.values()):
        raise FormatError(f"{path}: id2label, label2id or num_labels is damaged; expected two objects and a number")
    pairs = [*((number, name) for name, number in by_name.items()), *by_number.items()]
    if wrong := [pair for pair in pairs if not (str(pair[0]).isdecimal() and isinstance(pair[1], _NAME))]:
        raise FormatError(f"{path}: id2label or label2id has {shown(wrong[0])}; expected a number and a name")
    names = {int(number): str(name) for number, name in pairs if name is not None}
    count = rows or max(count, len(by_number), len(by_name)) or 2
    if beyond := [key for key in by_number if not 0 <= int(key) < count]:
        raise FormatError(f"{path}: id2label has the key {beyond[0]}; expected 0 to {count - 1} for {count} classes")
    labels, notes = [names.get(number, f"LABEL_{number}") for number in range(count)], []
    if by_number and (unnamed := [label for number, label in enumerate(labels) if number not in names]):
        notes.append(f"{path}: id2label does not name each of {count} classes: {', '.join(unnamed[:5])} by number")
    for number, label in enumerate(labels):
        if label in labels[:number]:
            labels[number] = next(name for n in itertools.count(number) if (name := f"{label} ({n})") not in labels)
            notes.append(f"{path}: id2label has {shown(label)} twice; class {number} is {shown(labels[number])} here")
    return labels, notes
