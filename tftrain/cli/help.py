"""Answers to `--help` and `--version`: what a program does, an example that works as typed, and its flags.

A program's sentence and example are the first two paragraphs of its docstring; nothing is imported for them.
"""

import dataclasses
import difflib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import tftrain
from tftrain.config.fields import ON_RESUME, Problem, bounds, flag_name, help_of, on_resume, type_of
from tftrain.config.suggestions import suggest
from tftrain.host.exit_codes import ExitCode
from tftrain.host.text import one_line

# The programs, each with its arguments beside flags.
PROGRAMS = {
    **{"prepare": "", "run": "", "launch": "-np N [-H HOST:SLOTS,...] ", "plan": "", "report": "OUTPUT_DIR... "},
    **{"predict": "[TEXT]... ", "export": "", "convert": "", "schedules": "", "bench": ""},
}
FEW = 24  # A program with at most this number of flags shows all of them.
MORE = "all flags: --help=all; one flag: --help=FLAG; guide: python -m tftrain docs NAME"
_ASKED = re.compile(r"--?(help|h|helpfull|version)(?:=(.*))?", re.DOTALL)


class Described(NamedTuple):
    """A flag in words; `default` is "" if it has none, `values` are the choices, or the type and its bounds."""

    name: str
    default: str
    choices: tuple[str, ...]
    kind: str
    values: str
    help: str
    on_resume: str | None
    common: bool


def described(section: Any) -> list[Described]:
    """Returns the flags of a dataclass in words."""
    flags, kinds = [], on_resume(section)
    for field in dataclasses.fields(section):
        base, default = type_of(section, field), getattr(section, field.name)
        shown = "" if default is None else str(default).lower() if base is bool else str(default)
        kind, shown = ("str", ",".join(default)) if base is tuple else (base.__name__, shown)
        choices = tuple(map(str, field.metadata["choices"] or ()))
        words = ", ".join(choices) or f"{kind} {bounds(field)}".strip(), help_of(section, field), kinds[field.name]
        flags.append(Described(flag_name(field), shown, choices, kind, *words, field.metadata["common"]))
    return flags


def answer(args: Sequence[str], sections: Sequence[Any]) -> None:
    """Prints the help or the version that the arguments ask for, with the flags by section, and ends the process.

    `--help NAME` means the same as `--help=NAME`. Returns if there is neither `--help` nor `--version` before `--`.
    """
    for arg, follows in zip(args, [*args[1:], "-"], strict=True):
        if arg == "--":
            return
        if asked := _ASKED.fullmatch(arg):
            topic = "all" if asked[1] == "helpfull" else asked[2] or ("" if follows.startswith("-") else follows)
            is_version = asked[1] == "version"
            print_text(f"tftrain {tftrain.__version__}" if is_version else help_text(args[0], sections, topic))


def help_text(program: str, sections: Sequence[Any], topic: str) -> str:
    """Returns the help of a program: of its common flags, of "all" flags, or of the flag that the topic names."""
    name, by_section = program.rpartition("tftrain.")[2], [(section, described(section)) for section in sections]
    flags = {flag.name: flag for _, listed in by_section for flag in listed}
    if topic not in ("", "all"):
        return _one(f"tftrain.{name}", topic.lstrip("-"), flags)
    usage = "[--FLAG=VALUE]... [--flagfile=FILE]..." if flags else ""
    usage = wrapped(f"usage: python -m tftrain.{name} {PROGRAMS.get(name, '')}{usage}", 0, 7)
    sentence, heading, example = paragraphs(name)
    lines = [usage, "", wrapped(sentence), "", wrapped(heading), "", command(example)]
    every = topic == "all" or len(flags) <= FEW
    for section, listed in by_section:
        if shown := [flag for flag in listed if every or flag.common]:
            lines += ["", wrapped((section.__doc__ or "").strip().split("\n")[0])]
        for flag in shown:
            default = f" (default {flag.default})" if flag.default else ""
            head = f"--{flag.name}={'|'.join(flag.choices) or flag.kind}{default}"
            lines.append(wrapped(head if len(head) + 2 <= columns() else head.replace("|", " | "), 2, 6))
            lines.append(wrapped(flag.help if every else f"{flag.help.partition('. ')[0].rstrip('.')}.", 6))
    return "\n".join([*lines, "", wrapped(MORE if flags else MORE.rpartition("; ")[2])])


def paragraphs(program: str) -> list[str]:
    """Returns the sentence of a program, the line above its example, and the example, each on one line."""
    root = Path(tftrain.__file__).parent
    path = next(path for path in (root / f"{program}.py", root / program / "__main__.py") if path.exists())
    sentence, example = path.read_text(encoding="utf-8").split('"""')[1].split("\n\n")[:2]
    return [" ".join(text.split()) for text in (sentence, *example.split("\n", 1))]


def listing() -> str:
    """Returns the usage of all programs, and a sentence for each."""
    sentences = {name: paragraphs(name)[0] for name in PROGRAMS} | {"docs": "Shows a guide, or lists the guides."}
    lines = [wrapped(f"{name:9}  {sentence}", 2, 13) for name, sentence in sentences.items()]
    usage = "usage: python -m tftrain.PROGRAM [--FLAG=VALUE]...\n       tftrain PROGRAM [--FLAG=VALUE]...\n"
    return "\n".join([usage, *lines, "", "help: tftrain PROGRAM --help; guide: tftrain docs NAME"])


def refuse_name(kind: str, name: str, known: Collection[str], listing: str) -> NoReturn:
    """Ends the process because no program or guide has this name; says which one is meant, and lists all."""
    meant = "".join(f"; did you mean {each}?" for each in difflib.get_close_matches(name, known, 1))
    print(f"tftrain: {one_line(name)}: no such {kind}{meant}\n\n{listing}", file=sys.stderr)
    raise SystemExit(ExitCode.WRONG_FLAGS)


def columns() -> int:
    """Returns the width of a line: COLUMNS, as wide as the terminal, or 80."""
    return max(shutil.get_terminal_size((80, 24)).columns, 20)


def wrapped(text: str, indent: int = 0, then: int | None = None) -> str:
    """Returns a paragraph in lines of this width; `then` is the indent of all lines after the first."""
    indents = {"initial_indent": " " * indent, "subsequent_indent": " " * (indent if then is None else then)}
    return textwrap.fill(text, columns(), break_on_hyphens=False, **indents)


def command(line: str) -> str:
    """Returns a command in lines that a shell reads as one; none of its quoted words is divided."""
    words = [word.replace(" ", "\0") for word in re.findall(r'(?:"[^"]*"|\S)+', line)]
    options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": "      "}
    lines = textwrap.wrap(" ".join(words), columns() - 2, initial_indent="  ", **options)
    return " \\\n".join(lines).replace("\0", " ")


def print_text(text: str) -> NoReturn:
    """Prints a text and ends the process: with 0, or with 1 if standard output can't be written to."""
    try:
        print(text, flush=True)
    except OSError:  # A pipe whose reader has enough, or a full disk.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    raise SystemExit(0)


def _one(program: str, name: str, flags: dict[str, Described]) -> str:
    """Returns all that is declared of a flag."""
    if name not in flags:
        meant = " or ".join(f"--{flag}" for flag in suggest(name, flags))
        expected = f"no such flag; {f'did you mean {meant}?' if meant else '--help=all lists all flags'}"
        print(f"{program}: {Problem(name, None, expected)}", file=sys.stderr)
        raise SystemExit(ExitCode.WRONG_FLAGS)
    flag = flags[name]
    rows = {"values": flag.values, "default": flag.default or "none"}
    if flag.on_resume:
        rows["on resume"] = f"{flag.on_resume}: {ON_RESUME[flag.on_resume]}"
    return "\n".join([f"--{name}", wrapped(flag.help, 2), *(wrapped(f"{n:9}  {t}", 2, 13) for n, t in rows.items())])
