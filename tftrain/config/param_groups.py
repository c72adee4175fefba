"""`--param_groups`: weights whose names match a pattern have a learning rate and a weight decay of their own."""

import fnmatch
import math
from collections.abc import Iterable
from typing import NamedTuple

from tftrain.config.fields import Problem
from tftrain.files.lines import lines

_FORM = (
    "expected a file with a group on each line, such as `layer_0*/attention/* rate=0.5 weight_decay=0`, or the same "
    "groups separated by semicolons"
)


class ParamGroup(NamedTuple):
    """Settings of the weights whose names match a pattern."""

    pattern: str  # as a shell's: * is any characters, "/" too
    rate: float = 1.0  # multiplies the learning rate
    weight_decay: float | None = None  # None: as without the group


def read(value: str) -> list[ParamGroup]:
    """Returns the groups in a file, or in its lines separated by semicolons; a ValueError says why they are wrong."""
    groups = [_group(entry) for entry in lines(value, _FORM)]
    if not groups:
        raise ValueError(_FORM)
    return groups


def of_names(value: str | None, names: Iterable[str]) -> dict[str, ParamGroup]:
    """Returns the group of each variable that is in one, given the names of all variables of the model.

    Raises a ValueError if the value can't be read, if a group matches nothing, or if two match the same variable.
    """
    names, chosen = list(names), {}
    for group in () if value is None else read(value):
        matched = fnmatch.filter(names, group.pattern)
        if not matched:
            raise ValueError(f"{group.pattern} matches no weight; expected names such as {names[0]} and {names[-1]}")
        for name in matched:
            if name in chosen:
                raise ValueError(f"{name} matches {chosen[name].pattern} and {group.pattern}; expected one of them")
            chosen[name] = group
    return chosen


def problems(value: str | None, names: Iterable[str] | None = None) -> list[Problem]:
    """Returns why a value of `--param_groups` can't be used, for a model with these variables if `names` are given."""
    try:
        if value is not None:
            read(value) if names is None else of_names(value, names)
    except ValueError as error:
        return [Problem("param_groups", value, str(error))]
    return []


def resolved(value: str | None) -> str | None:
    """Returns a value that means the same after a change of its file."""
    return "; ".join(lines(value, _FORM)) if value else value


def _group(entry: str) -> ParamGroup:
    pattern, *settings = entry.split()
    values = {}
    for name, equals, text in (setting.partition("=") for setting in settings):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if name not in ("rate", "weight_decay") or name in values or not equals or not 0 <= number < math.inf:
            raise ValueError(f"{entry}: expected rate and weight_decay with numbers of at least 0; {_FORM}")
        values[name] = number
    if not values or "=" in pattern:
        raise ValueError(f"{entry}: expected a pattern, then rate, weight_decay or both; {_FORM}")
    return ParamGroup(pattern, **values)
