"""What transformers calls the tensors of a model, whoever saved them.

Wrappers of torch and training libraries put names of their own before those of a model's tensors, base models leave the
first one out, and a tied tensor may be there under one of its names only.
"""

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping

from tftrain.architecture.describe import describe, is_pre_norm
from tftrain.config.model import ModelConfig
from tftrain.families import DEFAULT, FAMILIES, Family
from tftrain.families.family import ModelType
from tftrain.files.errors import FormatError
from tftrain.formats.links import Link, Names, joined, same
from tftrain.formats.weights import PROJECTION, listed, part_of

Shapes = Mapping[str, tuple[int, ...]]
TYPES: dict[str, tuple[Family, ModelType]] = {
    model_type.name: (family, model_type) for family in FAMILIES.values() for model_type in family.types
}
_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OLD_NORM = re.compile(r"LayerNorm\.(gamma|beta)$")
_LAYER = re.compile(r"(.*?\.\d+)\.")
_NOT_IN_EACH = ("attention/query_norm", "attention/key_norm", "attention/norm")  # scopes that a first layer may lack


def type_of(model: ModelConfig) -> ModelType:
    """Returns the type of a model: the one that it names, or else the last of its family whose flags are the model's.

    Raises a FormatError if there is none.
    """
    own = dataclasses.replace(model, norm_position="pre" if is_pre_norm(model) else "post")
    fitting = [
        each
        for each in reversed(model.family.types)
        if all(getattr(own, name) == value for name, value in each.flags.items())
    ]
    if fitting:
        return next((each for each in fitting if each.name == model.model_type), fitting[0])
    raise FormatError(f"--model_family={model.model_family}: transformers has no such model")


def links_of(model: ModelConfig) -> list[Link]:
    """Returns the link of every tensor of a model with all its heads, except the dense layer of vectors."""
    own = type_of(model)
    classifier = own.sample_classifier if model.predicts_samples else own.scopes.get("classifier", "")
    classifier = own.answers if model.task == "question_answering" else classifier
    names = Names({**own.scopes, "classifier": classifier})
    if not own.transposes:
        names = names._replace(alone=same, together=functools.partial(joined, by_rows=False))
    return names.links(each for each in describe(model).variables() if part_of(each.name) != PROJECTION)


def type_by_tensors(names: Iterable[str]) -> ModelType | None:
    """Returns the type whose tensors of the first layer are all there. Those that have most come last in `TYPES`.

    Without their prefix, the names of a base model of the default family are those of other families too.
    """
    plain = set(map(_plain, names))
    fitting = [(family is DEFAULT, own) for family, own in reversed(TYPES.values()) if _fits(own, plain)]
    return max(fitting, key=lambda each: each[0], default=(False, None))[1]  # the first of those that are equal


def _fits(own: ModelType, names: Collection[str]) -> bool:
    scopes = [scope for scope, theirs in own.scopes.items() if "{layer}" in theirs and scope not in _NOT_IN_EACH]
    needed = {_first_layer(own, *each) for each in [*((scope, "weight") for scope in scopes), *own.telling]}
    lacking = {_first_layer(own, *each) for each in own.lacking}
    begins = _beginnings(names, own)
    whole = [begin for begin in begins if begin == "" or begin.endswith(own.prefix)]
    return any(all((begin + each in names) == (each in needed) for each in needed | lacking) for begin in whole)


def own_names(names: Iterable[str], own: ModelType, path: str) -> dict[str, str]:
    """Maps the names of a type's whole model to those in a file; FormatError if there are several models in it."""
    plain = {name: _plain(name) for name in names}
    beginnings = _beginnings(plain.values(), own)
    if len(beginnings) > 1:
        beginnings = [each for each in beginnings if each in ("", own.prefix)] or beginnings
    if len(beginnings) > 1:
        raise FormatError(f"{path}: {listed(beginnings)} the names of several models' tensors; expected one model")
    begin = beginnings[0] if beginnings else own.prefix
    outer = begin.removesuffix(own.prefix) if begin.endswith(own.prefix) else begin[: begin[:-1].rfind(".") + 1]
    others = (*own.scopes.values(), *own.tied_copies, own.answers)
    heads = tuple(f"{each.partition('.')[0]}." for each in others if not each.startswith(own.prefix))

    def whole_name(name: str) -> str:
        if name.startswith(begin) and not (begin == "" and name.startswith(heads)):
            return own.prefix + name.removeprefix(begin)
        return name.removeprefix(outer)

    owned = {whole_name(name): theirs for theirs, name in plain.items()}
    if len(owned) < len(plain):
        twice = set(plain) - set(owned.values())
        raise FormatError(f"{path}: {listed(twice)} there twice, with and without the name of a wrapper; expected one")
    copies = {name: owned[copy] for copy, name in own.tied_copies.items() if copy in owned and name not in owned}
    return owned | copies


def left_out(names: Iterable[str], used: Iterable[str], path: str) -> list[str]:
    """Returns the names of tensors that a model does not have, sorted: those of other heads and of further layers.

    Raises a FormatError if one is of a part of the `used` tensors, so that it would change what that computes.
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
    """Returns a name without those of wrappers, and with torch's names of a norm's variables."""
    leaves = {"gamma": "LayerNorm.weight", "beta": "LayerNorm.bias"}
    return _WRAPPERS.sub("", _OLD_NORM.sub(lambda norm: leaves[norm[1]], name))


def _first_layer(own: ModelType, scope: str, leaf: str) -> str:
    """Returns the name of a tensor of the first layer, without the prefix that base models lack."""
    return f"{own.scopes[scope].format(layer=0).removeprefix(own.prefix)}.{leaf}"


def _beginnings(names: Iterable[str], own: ModelType) -> list[str]:
    """Returns what is before the name of a tensor that each model of a type has once."""
    anchor = _first_layer(own, "attention/output", "weight")
    return sorted({name.removesuffix(anchor) for name in names if name == anchor or name.endswith(f".{anchor}")})
