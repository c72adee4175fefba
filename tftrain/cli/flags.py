"""The command line, made from the configuration's dataclasses.

All problems of a command line are reported at once, one line each. Only rank 0 reports them: the same lines from 64
ranks would hide the reason.
"""

import dataclasses
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from tftrain.cli import flagfile, help
from tftrain.config.fields import Config, ConfigError, Problem, flag_name, sections, type_of
from tftrain.config.fields import parse as parse_value
from tftrain.config.paths import expand
from tftrain.config.suggestions import suggest
from tftrain.host.exit_codes import ExitCode

# If there are more problems, only their number is printed: somebody passed a file that is no flagfile.
MAX_PROBLEMS = 50
RANK_0_PRINT_SECONDS = 5
HINT = "--help=FLAG explains a flag, --help=all lists all flags"
_FLAG = re.compile(r"--?(\w+)(?:=(.*))?", re.DOTALL)


def command_line(name: str, config_class: type, values: Mapping[str, Any]) -> list[str]:
    """Returns flags as a program's arguments; a list gives a flag several times, or else its values with commas."""
    parts = sections(config_class())
    several = {flag_name(each) for part in parts for each in dataclasses.fields(part) if each.default == ()}
    argv = [name]
    for flag, value in values.items():
        given = list(value) if isinstance(value, (list, tuple)) else [value]
        given = given if flag in (*several, "flagfile") else [",".join(map(str, given))]
        argv += [f"--{flag}={each}" for each in given if each is not None]
    return argv


def parse(config_class: type[Config], argv: Sequence[str]) -> Config:
    """Reads a command line like `read`, and raises a ConfigError with all its problems."""
    config, problems, _ = read(config_class, argv)
    if problems:
        raise ConfigError(problems)
    return config


def read(
    config_class: type[Config], argv: Sequence[str], arguments: list[str] | None = None
) -> tuple[Config, list[Problem], frozenset[str]]:
    """Reads a command line, `--flagfile` included.

    Args:
        config_class: a dataclass of flags, or a dataclass of such dataclasses; all have defaults.
        argv: the program's name and its arguments.
        arguments: takes the arguments that are no flags, and all after `--`, if a program has such; None: they are
            problems.

    Returns:
        A config_class; the problems: unknown flags, values of the wrong type or missing, stray arguments; and the names
        of the flags that the command line gives. A flag with a problem has its default. `field_problems` and the class
        itself check the values further.

    Raises:
        SystemExit: after printing the help or the version, if the arguments ask for it, see `help.answer`.
    """
    defaults = config_class()
    args, problems = flagfile.expand(argv)
    own = [getattr(defaults, name, None) for name in vars(config_class).get("__annotations__", ())]
    help.answer(args, sorted(sections(defaults), key=lambda section: section not in own))
    types = {flag_name(each): type_of(part, each) for part in sections(defaults) for each in dataclasses.fields(part)}
    texts, stray = _divided(args[1:], types, problems)
    if arguments is not None:
        end = stray.index("--") if "--" in stray else len(stray)
        arguments += [arg for arg in stray[:end] if not arg.startswith("-")] + stray[end + 1 :]
        stray = [arg for arg in stray[:end] if arg.startswith("-")]
    values = _parsed(texts, types, problems)
    problems += [_unknown(arg, types if number < MAX_PROBLEMS else ()) for number, arg in enumerate(stray)]
    named = frozenset(texts)
    if sections(defaults)[0] is defaults:
        return _fill(defaults, values, named, problems), problems, named
    parts = {name: _fill(section, values, named, problems) for name, section in vars(defaults).items()}
    return dataclasses.replace(defaults, **parts), problems, named


def refuse(program: str, error: ConfigError, rank: int = 0) -> NoReturn:
    """Ends the process with WRONG_FLAGS; rank 0 first prints the problems, one line each.

    The other ranks wait, because a launcher ends all ranks as soon as one fails, perhaps before rank 0 has printed.
    """
    if rank > 0:
        time.sleep(RANK_0_PRINT_SECONDS)
    else:
        for problem in error.problems[:MAX_PROBLEMS]:
            print(f"{program}: {problem}", file=sys.stderr, flush=True)
        if len(error.problems) > MAX_PROBLEMS:
            print(f"{program}: and {len(error.problems) - MAX_PROBLEMS} more problems", file=sys.stderr, flush=True)
        print(f"{program}: {HINT}", file=sys.stderr, flush=True)
    raise SystemExit(ExitCode.WRONG_FLAGS)


def _divided(
    args: Sequence[str], types: Mapping[str, type], problems: list[Problem]
) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the texts of each flag that is given, in their order, and the other arguments, with all after "--".

    A flag that lacks its value becomes a problem; a flag that follows is not taken for the value.
    """
    texts, stray, waiting = {}, [], list(reversed(args))
    while waiting:
        arg = waiting.pop()
        if arg == "--":
            return texts, [*stray, arg, *reversed(waiting)]
        match = _FLAG.fullmatch(arg)
        name, text = match.groups() if match else ("", None)
        if text is None and types.get(name) is bool:
            text = "true"
        elif text is None and types.get(name.removeprefix("no")) is bool:
            name, text = name.removeprefix("no"), "false"
        elif text is None and name in types:
            if not waiting or waiting[-1].startswith("--"):
                problems.append(Problem(name, None, f"expected a value: --{name}=VALUE"))
                continue
            text = waiting.pop()
        if name in types:
            texts.setdefault(name, []).append(text)
        else:
            stray.append(arg)
    return texts, stray


def _parsed(texts: Mapping[str, list[str]], types: Mapping[str, type], problems: list[Problem]) -> dict[str, Any]:
    """Returns the value of each flag; wrong values become problems.

    For a flag that may be repeated, the value is all texts as they were typed. For any other flag, the last text
    counts.
    """
    values = {}
    for name, given in texts.items():
        for text in given:
            try:
                values[name] = parse_value(types[name], text)
            except ValueError as error:
                problems.append(Problem(name, text, str(error)))
        if types[name] is tuple:
            values[name] = tuple(given)
    return values


def _fill(section: Config, values: Mapping[str, Any], named: Collection[str], problems: list[Problem]) -> Config:
    """Returns a section with the values of the command line; a `ModelConfig` has defaults that depend on the family."""
    given = {}
    for field in dataclasses.fields(section):
        if (name := flag_name(field)) in values:
            try:
                given[field.name] = expand(field, values[name])
            except ValueError as error:
                problems.append(Problem(name, values[name], str(error)))
    filled = dataclasses.replace(section, **given)
    return filled.with_family_defaults(named) if hasattr(filled, "with_family_defaults") else filled


def _unknown(arg: str, known: Collection[str]) -> Problem:
    """Returns the problem of an unknown argument, and suggests what may be meant among the `known` flag names."""
    name, equals, value = arg.lstrip("-").partition("=")
    if not arg.startswith("-") or not name:
        return Problem("", arg, "stray argument; every argument is --flag=value")
    meant = " or ".join(f"--{flag}" for flag in suggest(name, known))
    shown = (name, value if equals else None) if arg.startswith("--") else ("", arg)
    return Problem(*shown, f"no such flag{f'; did you mean {meant}?' if meant else ''}")
