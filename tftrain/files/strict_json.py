"""JSON of files that may be damaged or forged: parsed strictly, and converted to a declared type by msgspec.

msgspec checks types, bounds and unknown fields. It can't see that a name occurs twice in an object, so the text is
parsed by Python's json, whose hooks can.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from tftrain.host.text import one_line

T = TypeVar("T")
MAX_SHOWN = 80
# What msgspec appends to a message: the place of the error below the value that it was given.
_PLACE = re.compile(r" - at `\$([^`]*)`")


def parse(text: bytes | str) -> Any:
    """Parses JSON.

    Raises a ValueError if the text is not JSON, has NaN or Infinity, has two fields of one name in an object, or is
    nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def convert(value: Any, kind: type[T], name: str = "") -> T:
    """Converts parsed JSON to a type that msgspec knows, without coercion: `true` and `1.0` are no integers.

    `name` is the value's name in its file, for the message; "" for the whole. Raises a ValueError if the value is of
    another type or out of bounds. The message names the field and shows its value.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_message(str(error), value, name)) from None
    except UnicodeEncodeError:
        raise ValueError(f"{name or 'it'} holds half of a surrogate pair, which is not text") from None


def convert_each(value: Any, kind: type[T], name: str) -> dict[str, T]:
    """Converts the values of an object whose keys are free; the message of a ValueError names the key."""
    return {key: convert(entry, kind, f"{name}.{key}") for key, entry in convert(value, dict[str, Any], name).items()}


def shown(value: Any) -> str:
    """Returns a value for a message, in few characters."""
    return one_line(repr(value), MAX_SHOWN)


def _object(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return fields


def _constant(word: str):
    raise ValueError(f"{word} is not a number of JSON")


def _message(reason: str, value: Any, name: str) -> str:
    """Returns msgspec's message with the name of the field and its value before it."""
    match = _PLACE.search(reason)
    path, reason = (match[1], reason[: match.start()]) if match else ("", reason)
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[key] if key else value[int(index)]
    field, reason = one_line((name + path).removeprefix("."), 2 * MAX_SHOWN), one_line(reason, 4 * MAX_SHOWN)
    if reason.startswith("Object "):  # A field is missing or unknown: the object itself says nothing.
        return f"{field}: {reason}" if field else reason
    return f"{field or 'it'} is {shown(value)}: {reason}"
