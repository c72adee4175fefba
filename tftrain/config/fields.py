"""Fields of a configuration: each is a flag with its help, allowed values and bounds; and the problems of a value."""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import itertools
import math
import operator
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tftrain.host.text import one_line, shown
from tftrain.host.user_code import CLASS, is_class_name

Config = TypeVar("Config")

# The weights of a run that a program may take.
WEIGHTS = ("trained", "averaged")

# Characters of a value in a message: a path fits, a flagfile's line of a megabyte does not.
_MAX_VALUE = 300

# What a flag may do when a run resumes from a checkpoint. The value of a checkpoint serves where the command line gives
# none, except of local flags.
ON_RESUME = {
    "fixed": "another value is another model, another update rule or other random numbers: a change is refused",
    "named": "another value changes the remaining steps: a change is refused unless --change_on_resume names the flag",
    "logged": "another value changes rounding, or the length of the run: a change gives a line in the log",
    "free": "the value chooses where, how fast and on how many ranks the same result is computed: it may change",
    "local": "free, and never taken from a checkpoint: it belongs to a command or a host, or follows from the ranks",
    "host": "local, and it may differ between the hosts of a run",
}
_BOUNDS = {
    "minimum": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "maximum": ("at most", operator.le),
    "below": ("below", operator.lt),
}
_EXPECTED = {int: "expected a whole number within 64 bits", float: "expected a number", bool: "expected true or false"}
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Problem(NamedTuple):
    """One reason to refuse a configuration: the flag, the value given, and the value expected."""

    flag: str
    value: Any
    expected: str

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, tuple):
            value = ",".join(value)
        value = one_line(str(value), _MAX_VALUE)
        given = "" if self.value in (None, ()) else f"={value}"
        return one_line(f"--{self.flag}{given}: {self.expected}" if self.flag else f"{value}: {self.expected}")


def refused(section: Any, flag: str, expected: str) -> Problem:
    """Returns the problem of a flag of a section of the configuration, with its value."""
    return Problem(flag, getattr(section, flag), expected)


def joined(problems: Sequence[Problem], others: Iterable[Problem]) -> list[Problem]:
    """Returns problems, and of the others those whose flags have none yet."""
    wrong = {problem.flag for problem in problems}
    return [*problems, *(problem for problem in others if problem.flag not in wrong)]


class ConfigError(ValueError):
    """A configuration is refused; carries all its problems."""

    def __init__(self, problems: list[Problem]):
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def flag(
    default: Any,
    help: str = "",
    *,
    choices: Sequence[str] | None = None,
    names: str = "",
    implementation: str | None = None,
    on_resume: str | None = None,
    common: bool = False,
    restrict: Mapping[str, tuple] | None = None,
    **limits: float,
) -> Any:
    """Declares a dataclass field that is also a flag.

    Args:
        default: the value without the flag. None means that the value follows from others; the help explains how. A
            field of the type tuple[str, ...] has the values of all occurrences of its flag.
        help: one sentence for `--help` and the documentation. "" if it does not fit on the line: then it is the string
            below the field, see `help_of`.
        choices: the allowed values, if there are only a few; CLASS among them allows every name of a class.
        names: what of a file the value names. path: a path or a glob, see `tftrain.config.paths`; location: a path
            beside other words, such as FORMAT:PATH; content: perhaps a file with the text, which a checkpoint holds.
        implementation: for a flag that only chooses how the same result is computed, its value for plain TensorFlow.
        on_resume: whether the value may differ from that of the checkpoint that a run resumes from, one of ON_RESUME;
            None: free for a path or an implementation, otherwise as the class attribute ON_RESUME says.
        common: whether `--help` shows the flag; `--help=all` shows every flag.
        restrict: by another flag, the values of it that this flag is for, see `restricted`.
        limits: `minimum` and `maximum`, inclusive bounds of a number; `above` and `below`, exclusive ones.
    """
    if unknown := limits.keys() - _BOUNDS.keys():
        raise TypeError(f"a flag has no {min(unknown)}")
    files = {"path": names == "path", "in_file": names == "content", "has_path": bool(names)}
    kinds = {"implementation": implementation, "on_resume": on_resume, "restrict": restrict or {}, "common": common}
    bounds = dict.fromkeys(_BOUNDS) | limits
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, **files, **kinds, **bounds})


def help_of(section: Any, field: dataclasses.Field) -> str:
    """Returns the help of a flag: the second argument of `flag`, or the string below the field."""
    return field.metadata["help"] or _strings_below(type(section))[field.name]


@functools.cache
def _strings_below(section_class: type) -> dict[str, str]:
    """Returns the string below each field of a dataclass that has one, on one line; Python itself stores none."""
    body = ast.parse(textwrap.dedent(inspect.getsource(section_class))).body[0].body
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


def on_resume(section: Any) -> dict[str, str | None]:
    """Returns for each flag of a dataclass one of ON_RESUME: its own, that of its kind, or the class attribute's."""
    default, kinds = getattr(section, "ON_RESUME", None), {}
    for field in dataclasses.fields(section):
        is_free = field.metadata["path"] or field.metadata["implementation"] is not None
        kinds[field.name] = field.metadata["on_resume"] or ("free" if is_free and default else default)
    return kinds


def implementations(config: Any) -> dict[str, str]:
    """Returns the flags of a dataclass that only choose an implementation, each with its value for plain TensorFlow."""
    plain = {field.name: field.metadata.get("implementation") for field in dataclasses.fields(config)}
    return {name: value for name, value in plain.items() if value is not None}


def flag_name(field: dataclasses.Field) -> str:
    """Returns the name of a field's flag; a keyword of Python, such as "from", has "_" after it as a field."""
    return field.name.removesuffix("_")


def field_problems(config: Any) -> list[Problem]:
    """Returns the fields of a dataclass that violate their choices or bounds, also LARGEST, or are `restricted`."""
    problems, largest = [], getattr(config, "LARGEST", {})
    for field in dataclasses.fields(config):
        value, limits = getattr(config, field.name), field.metadata
        if value is None or "help" not in limits:
            continue
        choices = limits["choices"] or (value,)
        if value not in choices and not names_code(field, value):
            problems += [Problem(flag_name(field), value, f"expected one of {', '.join(map(str, choices))}")]
        elif isinstance(value, float) and not math.isfinite(value):
            problems.append(Problem(flag_name(field), value, "expected a finite number"))
        elif not all(holds(value, limits[name]) for name, (_, holds) in _BOUNDS.items() if limits[name] is not None):
            within = bounds(field).replace("at least", "of at least", 1)
            problems.append(Problem(flag_name(field), value, f"expected a number {within}"))
        elif field.name in largest and value > largest[field.name]:
            problems.append(Problem(flag_name(field), value, f"expected a number of at most {largest[field.name]}"))
    return problems + restricted(config, vars(config))


def type_of(section: Any, field: dataclasses.Field) -> type:
    """Returns the type of a flag's values: int for both `int` and `int | None`, and tuple for `tuple[str, ...]`."""
    hint = typing.get_type_hints(section.__class__)[field.name]
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return typing.get_origin(hint) or hint


def parse(value_type: type, text: str) -> Any:
    """Returns the value of a flag that is not checked yet; raises a ValueError with what is expected."""
    try:
        if value_type is bool:
            return _BOOLEANS[text.lower()]
        if value_type is not int:
            return float(text) if value_type is float else text
        value = int(text, 16 if text[:2] == "0x" else 8 if text[:2] == "0o" else 10)
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(text)
        return value
    except (KeyError, ValueError) as error:
        raise ValueError(_EXPECTED[value_type]) from error


def names_code(field: dataclasses.Field, value: Any) -> bool:
    """Whether the value of a flag is the name of a user's class, which the flag takes."""
    return CLASS in (field.metadata["choices"] or ()) and is_class_name(value)


def first_reason(reasons: Mapping[str, bool]) -> str:
    """Returns the first of the reasons that holds; "" if none does."""
    return next((reason for reason, holds in reasons.items() if holds), "")


def superfluous(section: Any, names: Iterable[str], expected: str) -> list[Problem]:
    """Returns a problem for each of these flags of a dataclass that has another value than its default."""
    values = {name: getattr(section, name) for name in names}
    return [Problem(name, value, expected) for name, value in values.items() if value != getattr(type(section), name)]


def restricted(section: Any, values: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each flag that is given and has no meaning for the value of another flag in `values`."""
    problems = []
    for field in dataclasses.fields(section):
        for name, takes in field.metadata.get("restrict", {}).items():
            if values.get(name, takes[0]) not in takes:
                expected = f"remove this flag, or use --{name}={' or '.join(takes)}"
                problems += superfluous(section, (field.name,), expected)
    return problems


def not_installed(name: str, value: Any, package: str, extra: str) -> list[Problem]:
    """Returns a problem of a flag whose value needs a package of an extra, if that is not installed."""
    if importlib.util.find_spec(package) is not None:
        return []
    return [Problem(name, value, f"expected {package} to be installed: pip install 'tftrain[{extra}]'")]


def bounds(field: dataclasses.Field) -> str:
    """Returns the bounds of a flag in words; "" if it has none."""
    limits = field.metadata
    return " and ".join(f"{word} {limits[name]}" for name, (word, _) in _BOUNDS.items() if limits[name] is not None)


def sections(config: Any) -> list[Any]:
    """Returns the dataclasses that hold the flags of `config`: its dataclass-valued fields, or itself."""
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    return [part for part in parts if dataclasses.is_dataclass(part)] or [config]


def flag_values(config: Any) -> dict[str, Any]:
    """Returns the value of each flag of a configuration, or of a section."""
    return {name: value for section in sections(config) for name, value in dataclasses.asdict(section).items()}


def without_secrets(config: Config) -> Config:
    """Returns a copy of a configuration, or of a section, for files and trackers: its addresses are as `shown`."""

    def public(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return without_secrets(value)
        return shown(value) if isinstance(value, str) else value

    values = {field.name: public(getattr(config, field.name)) for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **values)


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """Returns a copy of a configuration of several sections with new values of some flags, found in any section."""
    parts = {}
    for field in dataclasses.fields(config):
        section = getattr(config, field.name)
        if own := {each.name: values[each.name] for each in dataclasses.fields(section) if each.name in values}:
            parts[field.name] = dataclasses.replace(section, **own)
    return dataclasses.replace(config, **parts)
