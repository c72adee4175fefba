"""The scaling of rotary positions by which a model was prepared for sequences longer than those it was trained on."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

NONE = "none"
EXPECTED = (
    "expected none, or llama3:FACTOR,LOW,HIGH,LENGTH with FACTOR at least 1 and LOW below HIGH, such as "
    "llama3:8,1,4,8192"
)
_NUMBER = r"(\d+(?:\.\d+)?)"
_LLAMA3 = re.compile(rf"llama3:{_NUMBER},{_NUMBER},{_NUMBER},(\d+)")


class RopeScaling(NamedTuple):
    """Llama 3's scaling, as `rope_type: llama3` of transformers: long waves turn more slowly."""

    factor: float  # by which a wave that fits less than `low` times into `length` is stretched
    low: float  # a wave that fits at least `high` times stays as it is; between the two, the factor changes smoothly
    high: float
    length: int  # tokens of the sequences before the scaling

    def __str__(self) -> str:
        return "llama3:" + ",".join(f"{number:g}" if number < 1e6 else str(int(number)) for number in self)


def parse(text: str) -> RopeScaling | None:
    """Returns the scaling that a value of --rope_scaling names, None for none; raises a ValueError for other texts."""
    if text == NONE:
        return None
    if not (match := _LLAMA3.fullmatch(text)):
        raise ValueError(EXPECTED)
    factor, low, high = (float(group) for group in match.groups()[:3])
    scaling = RopeScaling(factor, low, high, int(match[4]))
    if factor < 1 or not low < high or not scaling.length or not math.isfinite(high):
        raise ValueError(EXPECTED)
    return scaling


_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags of the base and the scaling in a config.json: of rope_parameters, or of fields before 5.0.

    Raises a ValueError if the scaling is another one than Llama 3's, or a number is missing.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise ValueError(f"rope_parameters is {parameters!r}; expected an object")
    theta = parameters.get("rope_theta", config.get("rope_theta", 10_000.0))
    if not _is_number(theta) or theta <= 1:
        raise ValueError(f"rope_theta is {theta!r}; expected a number above 1")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return {"rope_theta": float(theta), "rope_scaling": NONE}
    if kind != "llama3":
        raise ValueError(f"rope_type is {kind!r}; this project has only 'default' and 'llama3'")
    if missing := [name for name in _SCALING if not _is_number(parameters.get(name))]:
        raise ValueError(f"{missing[0]} is {parameters.get(missing[0])!r}; expected a number")
    scaling = str(RopeScaling(*(parameters[name] for name in _SCALING)))
    try:
        parse(scaling)
    except ValueError as error:
        raise ValueError(f"its rope scaling is {scaling}; {error}") from error
    return {"rope_theta": float(theta), "rope_scaling": scaling}


def write(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of config.json for a model's flags, under the names before and since 5.0."""
    scaling, theta = parse(flags["rope_scaling"]), {"rope_theta": flags["rope_theta"]}
    named = {"rope_type": "llama3", **dict(zip(_SCALING, scaling, strict=True))} if scaling else None
    return {**theta, "rope_scaling": named, "rope_parameters": {**theta, **(named or {"rope_type": "default"})}}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
