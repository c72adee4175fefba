"""A field of a configuration: a flag with its help, its allowed values and its bounds, and how it is refused."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

Config = TypeVar("Config")

# A value in a message: a path fits, a megabyte that stood on a flagfile's line does not.
_LONGEST_VALUE = 300


class Problem(NamedTuple):
    """One reason why a configuration is refused: the flag, the value it was given, and what is expected."""

    flag: str
    value: Any
    expected: str

    def __str__(self) -> str:
        value = one_line(str(self.value), _LONGEST_VALUE)
        given = "" if self.value is None else f"={value}"
        return one_line(f"--{self.flag}{given}: {self.expected}" if self.flag else f"{value}: {self.expected}")


def one_line(text: str, longest: int = 2000) -> str:
    """Returns a text for a message: characters that aren't printable as escapes, and what is too long cut out."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}...{text[-longest // 2 :]}"
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class ConfigError(ValueError):
    """Raised with every problem of a configuration at once."""

    def __init__(self, problems: list[Problem]):
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def flag(default: Any, help: str, *, choices=None, minimum=None, maximum=None, above=None, below=None) -> Any:
    """Declares a dataclass field that is also a flag.

    Args:
        default: its value when the flag is not given; None means "follows from the others", as the help must say.
        help: one sentence for `--help` and the documentation.
        choices: the allowed values, if they are few.
        minimum, maximum: inclusive bounds of a number.
        above, below: exclusive bounds of a number.
    """
    limits = {"choices": choices, "minimum": minimum, "maximum": maximum, "above": above, "below": below}
    return dataclasses.field(default=default, metadata={"help": help, **limits})


def field_problems(config: Any) -> list[Problem]:
    """Checks each field of one dataclass against its own choices and bounds."""
    found = []
    for field in dataclasses.fields(config):
        value, limits = getattr(config, field.name), field.metadata
        if value is None or "help" not in limits:
            continue
        bounds = (
            (limits["minimum"], "at least", lambda v, b: v >= b),
            (limits["maximum"], "at most", lambda v, b: v <= b),
            (limits["above"], "above", lambda v, b: v > b),
            (limits["below"], "below", lambda v, b: v < b),
        )
        if limits["choices"] and value not in limits["choices"]:
            found.append(Problem(field.name, value, f"expected one of {', '.join(map(str, limits['choices']))}"))
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(Problem(field.name, value, "expected a finite number"))
        elif any(bound is not None and not holds(value, bound) for bound, _, holds in bounds):
            words = [f"{word} {bound}" for bound, word, _ in bounds if bound is not None]
            found.append(Problem(field.name, value, f"expected a number {' and '.join(words)}"))
    return found


def sections(config: Any) -> list[Any]:
    """Returns the dataclasses that hold the flags of `config`: its dataclass-valued fields, or itself."""
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    return [part for part in parts if dataclasses.is_dataclass(part)] or [config]


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """Returns a configuration of several sections with other values of some flags, whichever sections they are in."""
    parts = {}
    for field in dataclasses.fields(config):
        section = getattr(config, field.name)
        own = {each.name: values[each.name] for each in dataclasses.fields(section) if each.name in values}
        parts[field.name] = dataclasses.replace(section, **own)
    return dataclasses.replace(config, **parts)
