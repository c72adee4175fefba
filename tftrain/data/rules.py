"""JSON from elsewhere against rules: an object has exactly the fields expected, each with a value its rule accepts."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tftrain.data.errors import DataError
from tftrain.fields import one_line


class Rule(NamedTuple):
    """Whether a value is accepted, and in words what is expected."""

    accepts: Callable[[Any], bool]
    expected: str


TEXT = Rule(lambda value: isinstance(value, str), "a text")
BOOL = Rule(lambda value: isinstance(value, bool), "true or false")
LIST = Rule(lambda value: isinstance(value, list), "a list")
OBJECT = Rule(lambda value: isinstance(value, dict), "an object")


def one_of(*allowed: str) -> Rule:
    """Accepts these texts."""
    return Rule(lambda value: value in allowed, " or ".join(allowed))


def number(lowest: int, highest: int) -> Rule:
    """Accepts whole numbers from `lowest` to `highest`; true is none, though Python takes it for 1."""
    return Rule(
        lambda value: type(value) is int and lowest <= value <= highest, f"a whole number from {lowest} to {highest}"
    )


def or_null(rule: Rule) -> Rule:
    """Accepts null, and what the rule accepts."""
    return Rule(lambda value: value is None or rule.accepts(value), f"null or {rule.expected}")


def check(path: str, place: str, value: Any, rules: Mapping[str, Rule]) -> None:
    """Refuses what is no object, or has other fields than `rules` or a value that its rule does not accept.

    Args:
        path: the file, for the message.
        place: of the value in the file, "" for the whole of it.
        value: parsed JSON.
        rules: by the name of the field.

    Raises:
        DataError: it names the file and the field.
    """
    if not isinstance(value, dict):
        raise DataError(f"{path}: {place or 'it'} is {shown(value)}; expected an object; prepare the data again")
    prefix = f"{place}." if place else ""
    for name in [*(name for name in rules if name not in value), *(name for name in value if name not in rules)]:
        state = "missing" if name in rules else "unknown"
        raise DataError(f"{path}: the field {prefix}{one_line(name, 80)} is {state}; prepare the data again")
    for name, rule in rules.items():
        if not rule.accepts(value[name]):
            raise DataError(
                f"{path}: {prefix}{name} is {shown(value[name])}; expected {rule.expected}; prepare the data again"
            )


def shown(value: Any) -> str:
    """Returns a value for a message, shortened."""
    return one_line(repr(value), 80)
