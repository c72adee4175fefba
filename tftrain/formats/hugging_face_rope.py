"""Rotary positions in the config.json of transformers: rope_parameters, or rope_theta and rope_scaling before 5.0."""

from typing import Any

from tftrain.config import rope
from tftrain.config.model import ModelConfig
from tftrain.files.errors import FormatError

_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def flags(config: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the flags of the base and the scaling.

    Raises:
        FormatError: the scaling is another one than Llama 3's, or a number is missing.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise FormatError(f"{path}: rope_parameters is {parameters!r}; expected an object")
    theta = parameters.get("rope_theta", config.get("rope_theta", ModelConfig.rope_theta))
    if not _is_number(theta) or theta <= 1:
        raise FormatError(f"{path}: rope_theta is {theta!r}; expected a number above 1")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return {"rope_theta": float(theta), "rope_scaling": rope.NONE}
    if kind != "llama3":
        raise FormatError(f"{path}: rope_type is {kind!r}; this project has only 'default' and 'llama3'")
    if missing := [name for name in _SCALING if not _is_number(parameters.get(name))]:
        raise FormatError(f"{path}: {missing[0]} is {parameters.get(missing[0])!r}; expected a number")
    scaling = str(rope.RopeScaling(*(parameters[name] for name in _SCALING)))
    try:
        rope.parse(scaling)
    except ValueError as error:
        raise FormatError(f"{path}: its rope scaling is {scaling}; {error}") from error
    return {"rope_theta": float(theta), "rope_scaling": scaling}


def local_and_global(config: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the flags of the bases of a ModernBERT's layers.

    Raises:
        FormatError: a base is no number above 1, or there is a scaling.
    """
    parameters, bases = config.get("rope_parameters") or {}, {}
    for flag, kind, field in (
        ("rope_theta", "full_attention", "global_rope_theta"),
        ("local_rope_theta", "sliding_attention", "local_rope_theta"),
    ):
        of_kind = parameters.get(kind, {}) if isinstance(parameters, dict) else parameters
        default = ModelConfig.local_rope_theta if flag == "local_rope_theta" else 160_000.0
        of_kind = of_kind if of_kind else {"rope_theta": config.get(field, default)}
        if not isinstance(of_kind, dict) or of_kind.get("rope_type", "default") != "default":
            raise FormatError(
                f"{path}: rope_parameters of {kind} is {of_kind!r}; this project has only rope_type 'default'"
            )
        bases[flag] = flags(of_kind, path)["rope_theta"]
    return bases


def fields(model: ModelConfig) -> dict[str, Any]:
    """Returns the fields of config.json, under the names of both versions."""
    scaling = model.rotary_scaling
    named = {"rope_type": "llama3", **dict(zip(_SCALING, scaling, strict=True))} if scaling else None
    return {
        "rope_theta": model.rope_theta,
        "rope_scaling": named,
        "rope_parameters": {"rope_theta": model.rope_theta, **(named or {"rope_type": "default"})},
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
