"""`--help`, `--version`, `python -m tftrain` and its guides: for every program, on narrow lines, without TensorFlow."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tftrain
from tftrain.cli import guides, help
from tftrain.config.fields import flag_name, help_of, sections
from tools import flag_table

ROOT = Path(tftrain.__file__).parent
CONFIGS = {name.removeprefix("tftrain."): [config_class] for name, config_class in flag_table.PROGRAMS.items()}
CONFIGS["launch"] += CONFIGS["run"]


def sections_of(program):
    return [part for each in CONFIGS.get(program, ()) for part in sections(each())]


def names(program):
    return {flag_name(field) for part in sections_of(program) for field in dataclasses.fields(part)}


def shown(text):
    return set(re.findall(r"^  --(\w+)=", text, re.MULTILINE))


def run(*args):
    """Runs Python; returns its exit code, lines and errors, after it has loaded no TensorFlow."""
    environ = {"PYTHONPATH": str(ROOT.parent), "PATH": os.environ["PATH"], "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run([sys.executable, *args], env=environ, capture_output=True, text=True, timeout=60)
    errors = done.stderr.splitlines()
    assert not [line for line in errors if line.startswith("import time:") and line.endswith(" tensorflow")]
    return done.returncode, done.stdout.splitlines(), [each for each in errors if not each.startswith("import time:")]


@pytest.mark.parametrize("program", help.PROGRAMS)
def test_help_says_what_a_program_does_with_an_example_and_its_flags_on_narrow_lines(program):
    code, lines, errors = run("-m", "tftrain", program, "--help")
    assert (code, errors) == (0, [])
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: python -m tftrain.{program} {help.PROGRAMS[program]}".rstrip())
    sentence, heading, example = help.paragraphs(program)
    text = "\n".join(lines)
    assert all(part in " ".join(text.replace("\\\n", " ").split()) for part in (sentence, heading, example))
    assert re.fullmatch(r"[A-Z][^.]*(?:\.\w[^.]*)*\.", sentence), "one sentence"
    assert lines[-1].endswith("guide: python -m tftrain docs NAME")
    assert shown(text) <= names(program)
    assert len(shown(text)) <= help.FEW + 6


@pytest.mark.parametrize("program", help.PROGRAMS)
def test_help_of_all_flags_has_every_flag_on_lines_of_the_terminal(program, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = help.help_text(f"tftrain.{program}", sections_of(program), "all")
    assert shown(text) == names(program)
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("program", help.PROGRAMS)
def test_an_example_is_a_command_with_flags_of_its_program(program):
    commands = [shlex.split(each) for each in re.split("&&|>", help.paragraphs(program)[2])]
    assert ["python", "-m", f"tftrain.{program}"] in [words[:3] for words in commands]
    for words in commands:
        given = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
        assert given <= names(words[2].removeprefix("tftrain.") if len(words) > 2 else "")


@pytest.mark.parametrize(
    ("args", "code", "out", "err"),
    [
        *(
            (args, 0, "usage: ", "")
            for args in ("--help", "-h", "-help", "--help=", "--help --seed=1", "--seed --help")
        ),
        *((args, 0, "usage: ", "") for args in ("--help all", "--help=all", "--helpfull", "-h all")),
        *((args, 0, "--attn_impl\n", "") for args in ("--help=attn_impl", "-h attn_impl", "--help=--attn_impl")),
        ("--help=lr", 2, "", "--lr: no such flag; did you mean --learning_rate?"),
        ("--help precison", 2, "", "--precison: no such flag; did you mean --precision?"),
        ("--help=something", 2, "", "--something: no such flag; --help=all lists all flags"),
        ("--version", 0, f"tftrain {tftrain.__version__}\n", ""),
        ("-- --help", None, "", ""),
    ],
)
def test_help_is_given_as_it_is_asked_for(args, code, out, err, capsys):
    ended = None
    try:
        help.answer(["tftrain.run", *args.split()], sections_of("run"))
    except SystemExit as end:
        ended = end.code
    printed = capsys.readouterr()
    assert (ended, printed.err) == (code, f"tftrain.run: {err}\n" if err else "")
    assert printed.out.startswith(out)
    assert ("--rope_theta=float (default 10000.0)" in printed.out) == ("all" in args or "full" in args)
    if out.startswith("--attn_impl"):
        words = " ".join(printed.out.split())
        assert words.startswith("--attn_impl Attention core. softmax:")
        assert words.endswith(
            "values softmax, flash, cudnn, auto default softmax on resume free: " + help.ON_RESUME["free"]
        )


@pytest.mark.parametrize("program", CONFIGS)
def test_help_writes_flags_with_dashes_and_names_no_file_of_the_repository(program):
    flags = {name for name in names(program) if "_" in name}
    for section in sections_of(program):
        values = {str(choice) for field in dataclasses.fields(section) for choice in field.metadata["choices"] or ()}
        for field in dataclasses.fields(section):
            text = help_of(section, field)
            bare = re.findall(r"(?<![\w=-])([a-z]+(?:_[a-z0-9]+)+)\b(?!=)", text)
            assert not flags & set(bare) - values, text
            assert not re.search(r"docs/|\.\.\.|\n", text), text
            assert re.match(r"[^a-z].*[.)]$", text), text


def test_programs_and_guides_are_listed():
    packages = {path.parent.name for path in ROOT.glob("*/__main__.py")}
    modules = {path.stem for path in ROOT.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert packages | modules - {"__main__", "rank_server"} == set(help.PROGRAMS)
    expected = {"": [*help.PROGRAMS, "docs"], "docs": sorted(path.stem for path in ROOT.parent.glob("docs/*.md"))}
    for args, listed in expected.items():
        code, lines, errors = run("-m", "tftrain", *args.split())
        assert (code, errors) == (0, [])
        assert [line.split()[0] for line in lines if re.match(r"  \w+ +\S", line)] == listed
        assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ("rnu", "rnu: no such program; did you mean run?"),
        ("qqq", "qqq: no such program"),
        ("docs lever", "lever: no such guide; did you mean levers?"),
    ],
)
def test_a_wrong_name_is_refused_with_the_one_that_is_meant_and_a_list(args, line):
    code, lines, errors = run("-m", "tftrain", *args.split())
    assert (code, lines, errors[:2]) == (2, [], [f"tftrain: {line}", ""])
    assert errors[2].startswith("usage: ")


def test_a_guide_is_plain_text_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    page = (
        "# Title\n\nA **bold** [link](other.md#there) and\n`code` on two lines, which are joined.\n"
        "<!-- figures: x -->\n- an item that is\n  joined too, with more words than fit\n\n"
        "| a | b |\n| --- | --- |\n| `x` | y \\| z |\n\n"
        "| name | meaning |\n| --- | --- |\n| n | a cell that is wider than the terminal |\n\n"
        "```sh\npython -m tftrain.run --a=1\n```\n"
    )
    assert list(guides.plain(page)) == [
        *("# Title", "", "A bold link and `code` on two lines,", "which are joined."),
        *("- an item that is joined too, with more", "  words than fit", "", "a    b", "`x`  y | z", ""),
        *("n", "    meaning: a cell that is wider than", "      the terminal", ""),
        *("    python -m tftrain.run --a=1", ""),
    ]
    for name, text in guides.pages().items():
        lines = [line for line in guides.plain(text) if not line.startswith("    ")]
        assert not [line for line in lines if len(line) > 40 or "](" in line], name
